package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/internal/testenv"
)

// TestOneSystem runs commands that do not disturb each other on one system.
func TestOneSystem(t *testing.T) {
	t.Parallel()
	s := up(t, t.TempDir())
	for name, test := range map[string]func(t *testing.T, s *system){
		"a list that follows a result is not older":               testListAfterResult,
		"the status of a dead process says down":                  testStatusOfDeadProcess,
		"the audit log is read over HTTP in words":                testAuditLog,
		"hosts are labeled on the server":                         testLabels,
		"failures of a task are grouped by message":               testFailures,
		"a command calls the server of its context":               testContexts,
		"a stop of many hosts asks for confirmation on terminals": testConfirmation,
		"a repeated key is the same task":                         testRepeatedKey,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of := *s
			of.t = t
			test(t, &of)
		})
	}
}

// testListAfterResult: "op start --wait" succeeded, and "process list" did
// not know the process for more than a second.
func testListAfterResult(t *testing.T, s *system) {
	t.Helper()
	s.procfleet(0, "registration", "add", "-f", sleeperNamed(t, "listed"), "--host", "0:127.0.0.1")
	stopped := regexp.MustCompile(`listed +yes +down, stopped on purpose`)
	for range 5 {
		s.procfleet(0, "start", "test/listed", "0:127.0.0.1")
		if out := s.procfleet(0, "ps", "listed"); !strings.Contains(out, "  up  ") {
			t.Fatalf("after a start:\n%s", out)
		}
		s.procfleet(0, "stop", "test/listed")
		if out := s.procfleet(0, "ps", "listed", "--state", "down", "-o", "name"); out != "0:127.0.0.1 test:listed\n" {
			t.Fatalf("after a stop:\n%s", out)
		}
		if out := s.procfleet(0, "process", "list", "--namespace", "test"); !stopped.MatchString(out) {
			t.Fatalf("after a stop:\n%s", out)
		}
	}
}

// testStatusOfDeadProcess: the query succeeds, and the table, the exit code and the
// JSON say that the process does not run.
func testStatusOfDeadProcess(t *testing.T, s *system) {
	t.Helper()
	spec := sleeperNamed(t, "dead")
	if out := s.procfleet(exitProcessesDown, "op", "status", "--host", "0:127.0.0.1", "-f", spec, "--wait"); !strings.Contains(out, "succeeded  0  down\n0 up, 1 down\n") {
		t.Errorf("op status:\n%s", out)
	}
	out := s.procfleet(exitProcessesDown, "status", "-f", spec, "0:127.0.0.1", "-o", "json")
	var answer struct {
		Task     struct{ State string }
		Up, Down int
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.Task.State != "finished" || answer.Up != 0 || answer.Down != 1 {
		t.Errorf("%v: %s", err, out)
	}
	s.procfleet(0, "start", "-f", spec, "0:127.0.0.1")
	if out := s.procfleet(0, "status", "test/dead"); !strings.Contains(out, "1 up, 0 down") {
		t.Errorf("status of a process that runs:\n%s", out)
	}
}

func TestTheFleetIsListedFilteredAndWatched(t *testing.T) {
	t.Parallel()
	s := up(t, t.TempDir(), "--label", "zone=a1", "--label", "rack=7")
	s.procfleet(0, "start", "-f", sleeperSpec(t), "0:127.0.0.1")
	for _, test := range []struct {
		args string
		want string // part of the output; "" = no rows
	}{
		{"hosts", "HOST         AGENT ID  STATE  SINCE"},
		{"hosts", "rack=7,zone=a1"},
		{"hosts -o name -l zone=a*,rack", "0:127.0.0.1\n"},
		{"hosts -o name -l zone!=a1", ""},
		{"hosts -o name -l os=linux --area 0", "0:127.0.0.1\n"},
		{"hosts -o name --area 1", ""},
		{"hosts -o yaml", "zone: a1"},
		{"hosts -o wide", "INSTANCE"},
		{"hosts --conflict", "no hosts\n"},
		{"ps", "0:127.0.0.1  test       sleeper  up"},
		{"ps sleep* 0:127.0.0.1 --state up -l zone=a1", "sleeper"},
		{"ps --state down", "no processes\n"},
		{"ps --restarted", "no processes\n"},
		{"ps test/sleeper -o wide", "zone=a1"},
		{"ps other/sleeper", "no processes\n"},
		{"ps 0:10.0.0.1", "no processes\n"},
		{"tasks", "start    finished  1/1"},
		{"tasks --state finished --action start --since 1h -o wide", "native"},
		{"tasks --action stop", "no tasks"},
		{"tasks --state running", "no tasks"},
		{"tasks --application nobody", "no tasks"},
	} {
		out := s.procfleet(0, strings.Fields(test.args)...)
		if !strings.Contains(out, test.want) || test.want == "" && out != "" {
			t.Errorf("procfleet %s:\n%swant %q", test.args, out, test.want)
		}
	}
	for _, wrong := range []string{"hosts -o csv", "hosts -l Zone=1", "ps a b", "ps --module web", "tasks --action stopp", "tasks --limit -1", "start", "start a b", "start -f x y/z", "stop -f x"} {
		s.procfleet(2, strings.Fields(wrong)...)
	}
	watching := testenv.StartChild(t, nil, s.binary, "ps", "--watch", "--server", s.url)
	for range 2 {
		watching.WaitOutput(t, startTimeout, "sleeper")
	}
}

func testAuditLog(t *testing.T, s *system) {
	t.Helper()
	id := taskIn(t, s.procfleet(0, "start", "-f", sleeperNamed(t, "audited"), "0:127.0.0.1"))
	s.procfleet(0, "registration", "remove", "--namespace", "test", "--name", "audited", "--host", "0:127.0.0.1")
	out := s.procfleet(0, "audit", "--since", "1h")
	for _, want := range []string{
		"an unauthenticated caller from 127.0.0.1 submitted start of test:audited on 0:127.0.0.1 as task " + id,
		"task " + id + " of an unauthenticated caller finished: 1 succeeded", "changed: unregister of test:audited on 0:127.0.0.1",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the audit log does not say %q:\n%s", want, out)
		}
	}
	if out := s.procfleet(0, "audit", "--event", "finished", "--task", id, "--json"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"event":"finished"`) {
		t.Errorf("filtered, as JSON:\n%s", out)
	}
}

func TestTheOutputOfAProcessIsShownFollowedAndKeptAfterItsEnd(t *testing.T) {
	t.Parallel()
	s := up(t, t.TempDir())
	dir := t.TempDir()
	spec := filepath.Join(dir, "spec.yaml")
	write(t, filepath.Join(dir, "talker"), "#!/bin/sh\nn=0\nwhile [ -d "+dir+" ]; do n=$((n+1)); printf 'line \\033[31m%d\\n' $n; sleep 0.05; done\n")
	if err := os.Chmod(filepath.Join(dir, "talker"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, spec, "namespace: test\nname: talker\nproc_name: sh\nargs_pattern: talker\nlog_path: "+dir+"/talker.log\naccount: "+account(t)+"\ncontrol:\n  start: sh "+dir+"/talker </dev/null &\n"+
		"  no_profile: true\nalive:\n  start_check_begin: 100ms\n  start_check_end: 200ms\n")
	s.procfleet(0, "start", "-f", spec, "0:127.0.0.1")
	var out string
	testenv.Eventually(t, startTimeout, func() bool {
		out = s.procfleet(0, "logs", "test/talker", "0:127.0.0.1", "--tail", "3")
		return strings.Count(out, "\n") >= 3
	}, "the process has written three lines")
	if strings.Contains(out, "\x1b") || !strings.Contains(out, `line \u001b[31m`) {
		t.Errorf("control characters reach the terminal: %q", out)
	}
	following := testenv.StartChild(t, nil, s.binary, "logs", "test/talker", "0:127.0.0.1", "-f", "--tail", "1", "--server", s.url)
	for range 5 {
		following.WaitOutput(t, startTimeout, "line ")
	}
	if out := s.procfleet(0, "logs", "test/talker", "0:127.0.0.1", "--since", "1h"); !strings.HasPrefix(out, `line \u001b[31m1`+"\n") {
		t.Errorf("since an hour:\n%.200s", out)
	}
	s.procfleet(1, "logs", "test/talker", "0:127.0.0.1", "--log-path") // the file does not exist yet
	write(t, filepath.Join(dir, "talker.log"), "logged\n")
	if out := s.procfleet(0, "logs", "test/talker", "0:127.0.0.1", "--log-path"); out != "logged\n" {
		t.Errorf("the log file: %q", out)
	}
	s.procfleet(1, "logs", "test/talker", "0:127.0.0.1", "--log-path", "--since", "1h")
	s.procfleet(0, "stop", "test/talker")
	s.procfleet(0, "logs", "test/talker", "0:127.0.0.1")
	s.procfleet(1, "logs", "test/nobody", "0:127.0.0.1")
	s.procfleet(1, "logs", "test/talker", "0:127.0.0.2")
	s.procfleet(2, "logs", "test/talker")
	if out := s.procfleet(0, "audit", "--event", "change"); !strings.Contains(out, "changed: read output of test:talker on 0:127.0.0.1") {
		t.Errorf("the audit log does not say who read the output:\n%s", out)
	}
}

func TestHostsThatNeverExistedAreNotRegisteredLater(t *testing.T) {
	t.Parallel()
	s := up(t, t.TempDir())
	spec := sleeperSpec(t)
	registered := func() string {
		t.Helper()
		return s.procfleet(0, "process", "list", "--namespace", "test")
	}
	s.procfleet(exitHostsFailed, "start", "-f", spec, "0:10.0.0.1", "0:127.0.0.1")
	// The registration is removed after the result, which the command has waited for.
	testenv.Eventually(t, startTimeout, func() bool { return !strings.Contains(registered(), "10.0.0.1") }, "the host that does not exist has no registration")
	if out := registered(); !strings.Contains(out, "127.0.0.1") {
		t.Errorf("after a start that failed on another host:\n%s", out)
	}
	s.procfleet(0, "registration", "add", "-f", spec, "--host", "0:10.0.0.2", "--dry-run")
	if out := registered(); strings.Contains(out, "10.0.0.2") {
		t.Errorf("after a dry run:\n%s", out)
	}
	s.procfleet(0, "registration", "add", "-f", spec, "--host", "0:10.0.0.2")
	if out := s.procfleet(0, "registration", "prune", "--namespace", "test", "--plan"); !strings.Contains(out, "0:10.0.0.2") || strings.Contains(out, "127.0.0.1") {
		t.Errorf("the plan of a prune:\n%s", out)
	}
	if out := registered(); !strings.Contains(out, "10.0.0.2") {
		t.Errorf("the plan has removed it:\n%s", out)
	}
	s.procfleet(0, "registration", "prune", "--namespace", "test")
	if out := registered(); strings.Contains(out, "10.0.0.2") || !strings.Contains(out, "127.0.0.1") {
		t.Errorf("after the prune:\n%s", out)
	}
}

func testLabels(t *testing.T, s *system) {
	t.Helper()
	s.procfleet(0, "label", "0:127.0.0.1", "canary=yes", "rack=7")
	if out := s.procfleet(0, "hosts", "-l", "canary=yes", "-o", "name"); out != "0:127.0.0.1\n" {
		t.Errorf("hosts with the label: %q", out)
	}
	s.procfleet(0, "label", "-l", "rack=7", "canary-")
	if out := s.procfleet(0, "hosts", "-l", "canary", "-o", "name"); strings.Contains(out, "127.0.0.1") {
		t.Errorf("hosts with the removed label: %q", out)
	}
	for _, args := range [][]string{{"0:127.0.0.1"}, {"zone=a1"}, {"web1", "zone=a1"}, {"0:127.0.0.1", "a b=c"}} {
		s.procfleet(2, append([]string{"label"}, args...)...)
	}
}

func testFailures(t *testing.T, s *system) {
	t.Helper()
	spec := sleeperNamed(t, "failing")
	id := taskIn(t, s.procfleet(exitHostsFailed, "start", "-f", spec, "0:10.0.0.1", "0:10.0.0.2", "0:10.0.0.3", "0:10.0.0.4", "0:127.0.0.1"))
	out := s.procfleet(0, "task", "show", id)
	if !strings.Contains(out, "4      unreachable") || !strings.Contains(out, "0:10.0.0.1 0:10.0.0.2 0:10.0.0.3 …") || strings.Count(out, "unreachable  1") != 1 {
		t.Errorf("task show:\n%s", out)
	}
}

func testContexts(t *testing.T, s *system) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "contexts.yaml")
	run := func(want int, args ...string) string {
		t.Helper()
		cmd := exec.Command(s.binary, args...)
		cmd.Env = append(os.Environ(), "PROCFLEET_CONTEXTS="+file)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Fatalf("procfleet %v: exit %d, want %d\n%s", args, code, want, out)
		}
		return string(out)
	}
	run(0, "context", "add", "here", "--server", s.url)
	run(0, "context", "add", "elsewhere", "--server", "http://127.0.0.1:1")
	if out := run(0, "hosts", "-o", "name"); out != "0:127.0.0.1\n" {
		t.Errorf("the first context is not in use:\n%s", out)
	}
	run(0, "context", "use", "elsewhere")
	run(1, "hosts")
	if out := run(0, "hosts", "-o", "name", "--context", "here"); out != "0:127.0.0.1\n" {
		t.Errorf("--context here:\n%s", out)
	}
	run(0, "hosts", "--server", s.url) // a flag has precedence
	if out := run(2, "hosts", "--context", "nowhere"); !strings.Contains(out, "use one of elsewhere, here") {
		t.Errorf("an unknown context:\n%s", out)
	}
	run(0, "context", "remove", "elsewhere")
	if out := run(0, "context", "list"); !strings.Contains(out, "here") || strings.Contains(out, "*") {
		t.Errorf("the list after the removal of the current context:\n%s", out)
	}
	if out := run(0, "__complete", "context", "use", ""); !strings.Contains(out, "here\n") {
		t.Errorf("completion:\n%s", out)
	}
	if out := run(0, "__complete", "restart", "--context", "here", ""); !strings.Contains(out, ":4\n") {
		t.Errorf("completion of processes:\n%s", out)
	}
}

// testConfirmation: a pipe is never asked.
func testConfirmation(t *testing.T, s *system) {
	t.Helper()
	spec := sleeperNamed(t, "asked")
	hosts := filepath.Join(t.TempDir(), "hosts")
	var text strings.Builder
	for i := range askedAbove + 1 {
		text.WriteString("0:10.1.1." + strconv.Itoa(100+i) + "\n")
	}
	if err := os.WriteFile(hosts, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := []string{"stop", "-f", spec, "--hosts-file", hosts, "--wait=false", "--server", s.url}
	for _, test := range []struct {
		answer string
		args   []string
		code   int
		asked  bool
	}{
		{"no\n", stop, 1, true},
		{"yes\n", stop, 0, true},
		{"", append(stop, "--yes"), 0, false},
	} {
		out, code := onTerminal(t, test.answer, s.binary, test.args...)
		if code != test.code || strings.Contains(out, "stop on 51 hosts? Type yes to go on:") != test.asked {
			t.Errorf("answer %q: exit %d, output\n%s", test.answer, code, out)
		}
	}
	s.procfleet(0, stop[:len(stop)-2]...)
	if out, _ := onTerminal(t, "", s.binary, "tasks", "--server", s.url); !strings.Contains(out, "\x1b[") {
		t.Errorf("no colors on a terminal:\n%q", out)
	}
	if out := s.procfleet(0, "tasks"); strings.Contains(out, "\x1b") {
		t.Errorf("colors in a pipe:\n%q", out)
	}
}

// onTerminal runs a command whose standard streams are a pseudo terminal, types the input, and
// returns the output and the exit code.
func onTerminal(t *testing.T, input, binary string, args ...string) (output string, code int) {
	t.Helper()
	master, terminal := openTerminal(t)
	cmd := exec.Command(binary, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.Env = append(os.Environ(), "TERM=xterm")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	if _, err := master.WriteString(input); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	buffer := make([]byte, 4096)
	for {
		n, err := master.Read(buffer)
		out.Write(buffer[:n])
		if err != nil { // EIO: the command has ended
			break
		}
	}
	_ = cmd.Wait()
	return out.String(), cmd.ProcessState.ExitCode()
}

func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(number)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, terminal
}
