package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

var commandRows = []row{
	{"F64_account_that_is_missing_or_odd", oddAccounts},
	{"F65_account_is_switched_completely", accountSwitched},
	{"F66_agent_without_root_asked_for_another_account", cannotSwitch},
	{"F67_setup_path_missing_or_closed", badSetupPath},
	{"F68_script_that_cannot_run", badScripts},
	{"F69_login_profile_in_the_way", badProfile},
	{"F70_command_reads_stdin", readsStdin},
	{"F97_spec_with_odd_text", oddText},
	{"F98_log_of_the_daemon_rotated", logRotated},
	{"F100_status_during_a_long_start", statusDuringStart},
	{"F104_settings_inherited_from_the_agent", inheritedSettings},
}

func oddAccounts(t *testing.T, h *agenttest.Host) {
	// A directory service with one account; a query of another account hangs.
	tools := t.TempDir()
	getent := fmt.Sprintf(`#!/bin/sh
case "$1 $2" in
"passwd directory") echo "directory:*:%d:%d::/nonexistent:/sbin/nologin" ;;
"passwd slow") sleep 300 ;;
*) exit 2 ;;
esac
`, nobody, nobody)
	id := fmt.Sprintf(`#!/bin/sh
case "$*" in
*directory) echo %d ;;
*) exec /usr/bin/id "$@" ;;
esac
`, nobody)
	for name, script := range map[string]string{"getent": getent, "id": id} {
		if err := os.WriteFile(filepath.Join(tools, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.Start("PATH=" + tools + ":" + os.Getenv("PATH"))
	p := h.Program()
	letIn(t, p.Dir)
	h.Says(h.Expect("start", p.With(func(s *agentproto.Spec) { s.Account = "procfleet-nobody-has-this" }), agentproto.CodeFailed, "start:"),
		`account "procfleet-nobody-has-this": no such account`)
	h.Says(h.Expect("start", p.With(func(s *agentproto.Spec) { s.Account = "slow" }), agentproto.CodeFailed, "start:"), "did not respond")
	if p.Starts() != 0 {
		t.Errorf("%d starts", p.Starts())
	}
	for _, account := range []string{"nobody", "directory"} { // both accounts have no login shell
		p := h.Program()
		if err := os.Chown(p.Dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		r := h.Expect("start", p.With(func(s *agentproto.Spec) { s.Account = account }), agentproto.CodeSuccess, "")
		if uid := owner(t, r.Status.PID); uid != nobody {
			t.Errorf("%s runs as uid %d", account, uid)
		}
	}
}

func owner(t *testing.T, pid int) int {
	t.Helper()
	info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// tell runs a failing command, whose output contains the result of a script.
func tell(t *testing.T, h *agenttest.Host, spec agentproto.Spec, script string) map[string]string {
	t.Helper()
	spec.StartCmd = "{ " + script + "\n} 2>&1; exit 9"
	r := h.Expect("start", spec, agentproto.CodeFailed, "start: command failed; exit=9")
	_, output, _ := strings.Cut(r.Message, "output tail: ")
	said := map[string]string{}
	for line := range strings.Lines(output) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		said[name] = value
	}
	return said
}

func accountSwitched(t *testing.T, h *agenttest.Host) {
	h.Start("NATS_PASSWORD=secret", "HTTP_PROXY=http://10.0.0.1")
	p := h.Program()
	if err := os.Chown(p.Dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	letIn(t, p.Dir)
	p.Spec.Account = "nobody"
	said := tell(t, h, p.Spec, `echo uid=$(id -u); echo gid=$(id -g); echo groups=$(id -G); echo cwd=$(pwd); echo umask=$(umask); env; `)
	for name, want := range map[string]string{
		"uid": fmt.Sprint(nobody), "gid": fmt.Sprint(nobody), "groups": fmt.Sprint(nobody), "cwd": p.Dir, "umask": "0022",
		"USER": "nobody", "LOGNAME": "nobody", "NATS_PASSWORD": "", "HTTP_PROXY": "", "PROCFLEET_AGENT_TIMING": "",
	} {
		if said[name] != want {
			t.Errorf("%s is %q, want %q", name, said[name], want)
		}
	}
	if said["HOME"] == "" || said["HOME"] == "/root" || said["PATH"] == "" {
		t.Errorf("HOME is %q, PATH is %q", said["HOME"], said["PATH"])
	}
}

func cannotSwitch(t *testing.T, h *agenttest.Host) {
	unprivileged(t, h)
	h.Start()
	p := h.Program()
	letIn(t, p.Dir)
	p.Spec.ProcName = "nobody-else-runs-this" // root may run other programs under usual names
	h.Says(h.Expect("start", p.Spec, agentproto.CodeFailed, "start:"), "cannot switch to root: agent runs as nobody")
	if p.Starts() != 0 || len(h.Marked()) != 0 {
		t.Errorf("%d starts, processes %v", p.Starts(), h.Marked())
	}
}

func badSetupPath(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Write("file", "")
	for path, want := range map[string]string{"missing": "does not exist", "file": "is not a directory"} {
		spec := p.With(func(s *agentproto.Spec) { s.SetupPath = p.Path(path) })
		h.Says(h.Expect("start", spec, agentproto.CodeFailed, "start:"), "setup path "+spec.SetupPath+" "+want)
	}
	letIn(t, p.Dir)
	if err := os.Chmod(p.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := h.Expect("start", p.With(func(s *agentproto.Spec) { s.Account = "nobody" }), agentproto.CodeFailed, "start:")
	h.Says(r, "account nobody: "+p.Dir+" has mode 0700")
	if p.Starts() != 0 {
		t.Errorf("%d starts", p.Starts())
	}
}

func badScripts(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	script := func(name, text string, mode os.FileMode) {
		p.Write(name, text)
		if err := os.Chmod(p.Path(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	script("plain", agenttest.Daemon("-pid demo.pid")+"\n", 0o700)
	script("crlf", "#!/bin/sh\r\necho x\r\n", 0o700)
	script("closed", "#!/bin/sh\necho x\n", 0o600)
	script("busy", "#!/bin/sh\necho x\n", 0o700)
	writer, err := os.OpenFile(p.Path("busy"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	for name, want := range map[string]string{
		"crlf": "Windows line ends", "closed": "exit=126 (not executable: ", "none": "exit=127 (not found: ", "busy": "is being written",
	} {
		spec := p.With(func(s *agentproto.Spec) { s.StartCmd = "./" + name })
		h.Says(h.Expect("start", spec, agentproto.CodeFailed, "start: command failed"), want)
	}
	h.Expect("start", p.With(func(s *agentproto.Spec) { s.StartCmd = "./plain" }), agentproto.CodeSuccess, "")
}

func badProfile(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.NoProfile, p.Spec.Env["HOME"] = false, p.Dir
	p.Write(".profile", "echo welcome; exit 3\n")
	h.Says(h.Expect("start", p.Spec, agentproto.CodeFailed, "start: command failed; exit=3"), "welcome")
	p.Write(".profile", "echo welcome; sleep 300\n")
	hanging := p.With(func(s *agentproto.Spec) { s.OpTimeoutMS = 1_000 })
	h.Says(h.Expect("start", hanging, agentproto.CodeFailed, "start: command timed out"), "welcome")
	if p.Starts() != 0 || len(h.Marked()) != 0 {
		t.Errorf("%d starts, processes %v", p.Starts(), h.Marked())
	}
	p.Write(".profile", "echo welcome; export FROM_PROFILE=yes\n")
	if said := tell(t, h, p.Spec, "env"); said["FROM_PROFILE"] != "yes" {
		t.Errorf("output %v", said)
	}
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
}

func readsStdin(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd = `read line && exit 1; cat; ` + p.Spec.StartCmd
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
}

func oddText(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	const odd = "a 'b' \"c\" $d `e` \\f * ; & | > 进程 \U0001F600"
	p.Spec.Env["ODD"] = odd
	p.Spec.StartCmd = `printf '%s\n' "$ODD" '$(touch evil)' >said
echo "a;b" >>said # a comment; touch evil
` + p.Spec.StartCmd
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	text, err := os.ReadFile(p.Path("said"))
	if want := odd + "\n$(touch evil)\na;b\n"; err != nil || string(text) != want {
		t.Errorf("output %q, %v, want %q", text, err, want)
	}
	if _, err := os.Stat(p.Path("evil")); err == nil {
		t.Error("the text was executed")
	}
	fits, tooLong := h.Program(), h.Program()
	fill := func(spec *agentproto.Spec, size int) {
		spec.StartCmd = strings.Repeat(" ", size-len(spec.StartCmd)) + spec.StartCmd
	}
	fill(&fits.Spec, 32<<10)
	h.Expect("start", fits.Spec, agentproto.CodeSuccess, "")
	fill(&tooLong.Spec, 32<<10+1)
	h.Expect("start", tooLong.Spec, agentproto.CodeFailed, "start:")
	if fits.Starts() != 1 || tooLong.Starts() != 0 {
		t.Errorf("%d and %d starts", fits.Starts(), tooLong.Starts())
	}
}

// logRotated starts a daemon that writes to the output of its start command. That
// file must not grow without limit, and the agent must not keep the daemon's log
// open.
func logRotated(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd = fmt.Sprintf("exec ./demo -d -pid demo.pid -spew %d -spew-when go -marker written 2>demo.log", 64<<20)
	pid := h.Expect("start", p.Spec, agentproto.CodeSuccess, "").Status.PID
	held, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", h.Agent.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range held {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, p.Dir) {
			t.Errorf("the agent has %s open", target)
		}
	}
	if err := os.Rename(p.Path("demo.log"), p.Path("demo.log.1")); err != nil {
		t.Fatal(err)
	}
	p.Write("go", "")
	testenv.Eventually(t, agenttest.Patience, func() bool { return p.Lines("written") == 1 }, "the daemon has written everything")
	testenv.Eventually(t, agenttest.Patience, func() bool {
		files, err := filepath.Glob(filepath.Join(h.Data, "run", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			var st syscall.Stat_t // the beginning of the file becomes a hole
			if err := syscall.Stat(file, &st); err == nil && st.Blocks*512 > 16<<20 {
				return false
			}
		}
		return true
	}, "the output is trimmed")
	if !agenttest.Alive(pid) || p.Starts() != 0 {
		t.Error("the daemon has ended")
	}
}

func statusDuringStart(t *testing.T, h *agenttest.Host) {
	h.Start()
	p := h.Program()
	p.Spec.StartCmd = "echo start >>starts; until [ -e go ]; do sleep 0.1; done; exec ./demo -d -pid demo.pid >/dev/null 2>&1"
	start := h.Begin("start", p.Spec)
	testenv.Eventually(t, agenttest.Patience, func() bool { return p.Starts() == 1 }, "the start command runs")
	// The start command waits for the file go, so it still runs when the agent replies to
	// the status.
	h.Says(h.Expect("status", p.Spec, agentproto.CodeSuccess, ""), "busy: start")
	p.Write("go", "")
	h.Check(h.Result(start), agentproto.CodeSuccess, "")
}

func inheritedSettings(t *testing.T, h *agenttest.Host) {
	h.Wrapper = []string{"sh", "-c", `echo 300 >/proc/self/oom_score_adj; ulimit -S -n 200; umask 077; trap '' HUP USR1 PIPE; exec nice -n 5 "$@"`, "sh"}
	h.Start()
	p := h.Program()
	said := tell(t, h, p.Spec, `echo oom=$(cat /proc/self/oom_score_adj); echo nice=$(nice); echo umask=$(umask)
echo files=$(ulimit -S -n); grep SigIgn /proc/self/status | tr -d '\t' | tr : =; grep SigBlk /proc/self/status | tr -d '\t' | tr : =`)
	for name, want := range map[string]string{
		"oom": "0", "nice": "0", "umask": "0022", "files": "200", "SigIgn": "0000000000000000", "SigBlk": "0000000000000000",
	} {
		if got := said[name]; got != want && withoutReserved(got) != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// withoutReserved removes the signals 32 and 33 from a set: C libraries reserve
// them, and programs cannot set their handlers.
func withoutReserved(set string) string {
	n, err := strconv.ParseUint(set, 16, 64)
	if err != nil {
		return set
	}
	return fmt.Sprintf("%016x", n&^(3<<31))
}
