package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/procfleet/procfleet/internal/testenv"
)

// shop is a directory to run commands in, open to every account.
type shop struct {
	dir    string
	runner *Runner
}

func newShop(t *testing.T) shop {
	t.Helper()
	runner, err := NewRunner(NewAccounts())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "proc") //nolint:usetesting // t.TempDir lies under a directory closed to other accounts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endMarked(t); _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // other accounts must enter
		t.Fatal(err)
	}
	return shop{dir: dir, runner: runner}
}

func (s shop) command(t *testing.T, line string) Command {
	t.Helper()
	return Command{
		Line: line, Dir: s.dir, Account: ownAccount(t), OutputPath: filepath.Join(t.TempDir(), "op.out"),
		Key: t.Name(), Op: "op-1", Timeout: 20 * time.Second,
	}
}

// ownAccount is the user that runs the tests.
func ownAccount(t *testing.T) string {
	t.Helper()
	own, err := NewAccounts().Lookup(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return own.Name
}

func (s shop) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, s shop, c Command) *Execution {
	t.Helper()
	running, err := s.runner.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return running
}

func run(t *testing.T, s shop, c Command) Result {
	t.Helper()
	running := start(t, s, c)
	<-running.Done()
	return running.Result()
}

// playing sets the environment so that the test binary plays a scenario. GOCOVERDIR is set
// because a binary built for coverage otherwise prints a warning.
func playing(c Command, scenario string) Command {
	c.Env = map[string]string{scenarioVar: scenario, "GOCOVERDIR": filepath.Dir(c.OutputPath)}
	return c
}

func TestCommandRunsInItsOwnGroup(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	running := start(t, s, s.command(t, `echo "out $PWD"; echo err >&2; exit 3`))
	<-running.Done()
	got := running.Result()
	if got.ExitCode != 3 || got.Output != "out "+s.dir+"\nerr\n" || got.OK() || got.String() != "exit=3" {
		t.Fatalf("got %+v", got)
	}
	running = start(t, s, s.command(t, "exec sleep 50"))
	members, err := groupExcept(running.Identity(), nil)
	if err != nil || len(members) != 1 || members[0].Session != running.Identity().PID {
		t.Fatalf("group: %v, %v; want one that leads a session", members, err)
	}
	if err := KillGroup(t.Context(), running.Identity(), time.Second); err != nil {
		t.Fatal(err)
	}
	<-running.Done()
	if got := running.Result(); got.Signal != syscall.SIGTERM || got.String() != "signal=SIGTERM" {
		t.Errorf("got %+v, want SIGTERM", got)
	}
}

func TestTimeoutEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	c := s.command(t, `trap '' TERM; sleep 50 & sleep 50`)
	c.Timeout = 100 * time.Millisecond
	running := start(t, s, c)
	<-running.Done()
	if got := running.Result(); !got.TimedOut || got.OK() {
		t.Fatalf("got %+v, want a timeout", got)
	}
	if left, err := groupExcept(running.Identity(), nil); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestHungCommandWithDaemonUp(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	program(t, s.dir, "app")
	pidFile := filepath.Join(s.dir, "app.pid")
	running := start(t, s, playing(s.command(t, "./app; sleep 50"), "daemon="+pidFile))
	target := Target{ProcName: "app", SetupPath: s.dir, PidPath: pidFile}
	var daemon Identity
	eventually(t, "the daemon runs", func() bool {
		got := find(t, target)
		if got.Verdict == Running && got.UsedPidFile {
			daemon = got.Procs[0].Identity
		}
		return !daemon.IsZero()
	})
	if err := KillGroup(t.Context(), running.Identity(), time.Second, daemon); err != nil {
		t.Fatal(err)
	}
	<-running.Done()
	if !Alive(daemon) {
		t.Error("the daemon was killed with the command")
	}
}

func TestForegroundProgramIsTheLeader(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	program(t, s.dir, "app")
	running := start(t, s, playing(s.command(t, "exec ./app"), "sleep"))
	eventually(t, "the shell became the program", func() bool {
		got := find(t, Target{ProcName: "app", SetupPath: s.dir})
		return got.Verdict == Running && got.Procs[0].Identity == running.Identity()
	})
	if err := KillGroup(t.Context(), running.Identity(), 0, running.Identity()); err != nil {
		t.Fatal(err)
	}
	if !Alive(running.Identity()) {
		t.Error("an excluded leader was killed")
	}
}

func TestDaemonKeepsItsOutput(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	program(t, s.dir, "app")
	c := playing(s.command(t, "./app"), "hold="+s.dir)
	got := run(t, s, c)
	if !got.OK() || !got.OutputHeld {
		t.Fatalf("got %+v, want success with the output still held", got)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(got.Output))
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "go", "", 0o600)
	eventually(t, "the daemon wrote 10 MB", func() bool {
		_, err := os.Stat(filepath.Join(s.dir, "written"))
		return err == nil
	})
	if !Alive(daemon) {
		t.Fatal("the daemon died of its output")
	}
	used := func() int64 {
		info, err := os.Stat(c.OutputPath)
		if err != nil {
			t.Fatal(err)
		}
		return diskUsage(info)
	}
	before := used()
	if err := ShortenOutput(c.OutputPath, 20<<20, 1<<20); err != nil || used() != before {
		t.Errorf("below the limit: %d of %d bytes remain, %v", used(), before, err)
	}
	if err := ShortenOutput(c.OutputPath, 1<<20, 64<<10); err != nil || used() > 1<<20 {
		t.Errorf("above the limit: %d bytes remain, %v", used(), err)
	}
	data, from, size, err := ReadOutput(c.OutputPath, 0, 4096)
	if err != nil || from < size-1<<20 || len(data) == 0 || data[0] == 0 {
		t.Errorf("after shortening: %d bytes at %d of %d, %v", len(data), from, size, err)
	}
	if err := Signal(daemon, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the output is free", func() bool { return !OutputHeld(c.OutputPath) })
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	program(t, s.dir, "app")
	c := playing(s.command(t, "./app"), "spew="+strconv.Itoa(160<<20))
	c.Timeout = deadMan
	got := run(t, s, c)
	if !got.OK() || len(got.Output) != OutputTail || !strings.HasSuffix(got.Output, "abcde\nthe end\n") {
		t.Fatalf("got %+v with %d bytes of output", got, len(got.Output))
	}
	info, err := os.Stat(c.OutputPath)
	if err != nil {
		t.Fatal(err)
	}
	if diskUsage(info) > 128<<20 {
		t.Errorf("the file takes %d bytes after 160 MiB of output", diskUsage(info))
	}
}

// A busy host may take a while before the command writes anything.
func TestOutputIsLookedAtSoonAlthoughNothingWasWrittenAtFirst(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o := outputFile{path: f.Name(), file: f}
	passed := firstSizeCheck
	for range 4 {
		next := o.bound()
		if next > passed {
			t.Fatalf("%v after the start the next look is in %v", passed, next)
		}
		passed += next
	}
	if _, err := f.Write(make([]byte, MaxOutput/32)); err != nil {
		t.Fatal(err)
	}
	if next := o.bound(); next != minSizeCheck {
		t.Errorf("next look at what grows fast is in %v", next)
	}
	for range 20 {
		passed = o.bound()
	}
	if passed != maxSizeCheck {
		t.Errorf("what does not grow any more is looked at every %v", passed)
	}
}

func TestOutputIsValidText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"\xff\xfeok\x00\x01\x1b[1m": "\uFFFDok[1m", "\xc4\xe3\xba\xc3": "\uFFFD", "进程\n": "进程\n", "": "",
	} {
		if got := cleanText([]byte(text), OutputTail); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	long := strings.Repeat("进", OutputTail)
	got := cleanText([]byte(long)[len(long)-OutputTail:], OutputTail)
	if !utf8.ValidString(got) || len(got) > OutputTail || strings.Contains(got, "\uFFFD") {
		t.Errorf("a cut character is shown: %.12q (%d bytes)", got, len(got))
	}
}

func TestEnvironmentIsBuiltFromNothing(t *testing.T) {
	t.Setenv("NATS_PASSWORD", "secret") // therefore not parallel
	s := newShop(t)
	c := s.command(t, "exec env")
	c.Env = map[string]string{"JAVA_HOME": "/opt/java", KeyMark: "forged"}
	got := run(t, s, c)
	for _, want := range []string{"PATH=" + defaultPath, "LANG=C.UTF-8", "JAVA_HOME=/opt/java", KeyMark + "=" + t.Name(), OpMark + "=op-1", "HOME=", "USER=", "LOGNAME=", "SHELL="} {
		if !strings.Contains(got.Output, want) {
			t.Errorf("no %s in:\n%s", want, got.Output)
		}
	}
	if strings.Contains(got.Output, "secret") || strings.Contains(got.Output, "forged") {
		t.Errorf("leaked:\n%s", got.Output)
	}
}

func TestCommandHasNoInputAndNoOpenFiles(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	got := run(t, s, s.command(t, `cat; umask; ls /proc/self/fd | wc -l; cat /proc/self/oom_score_adj; nice`))
	if got.Output != "0022\n4\n0\n0\n" {
		t.Fatalf("got %q, want umask 0022, stdin, stdout, stderr and the listed directory, no adjustments", got.Output)
	}
}

func TestOpenFilesLimitIsTheAgentsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := program(t, dir, "app")
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "ulimit -Sn 512; exec "+path)
	cmd.Env = append(os.Environ(), scenarioVar+"=limits="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "512\n" {
		t.Fatalf("got %q, %v; want the limit from before Go raised it", out, err)
	}
}

func TestUnknownAccount(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, name := range []string{"no-such-user", "-r", "root:x"} {
		c := s.command(t, "touch ran")
		c.Account = name
		_, err := s.runner.Start(t.Context(), c)
		if !errors.Is(err, ErrNoAccount) || !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("got %v, want no such account with the name", err)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "ran")); err == nil {
		t.Error("a command ran")
	}
}

func TestAccountIsSwitchedCompletely(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	s := newShop(t)
	want, err := exec.CommandContext(t.Context(), "id", "nobody").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := s.command(t, `id; echo "$HOME $USER $LOGNAME $SHELL"; pwd; umask; echo reopened >>/dev/stdout`)
	c.Account = "nobody"
	got := run(t, s, c)
	expected := string(want) + "/nonexistent nobody nobody /bin/sh\n" + s.dir + "\n0022\nreopened\n"
	if got.Output != expected {
		t.Fatalf("got %q, want %q", got.Output, expected)
	}
}

func TestNonRootAgentCannotSwitch(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	if os.Geteuid() != 0 {
		want := fmt.Sprintf("cannot switch to root: agent runs as %s (uid %d); set the account, or run the agent as root",
			ownAccount(t), os.Geteuid())
		for _, account := range []string{"root", ""} { // no account means root, not the agent's user
			c := s.command(t, "true")
			c.Account = account
			if _, err := s.runner.Start(t.Context(), c); err == nil || err.Error() != want {
				t.Fatalf("account %q: got %v, want %q", account, err, want)
			}
		}
		if got := run(t, s, s.command(t, "true")); !got.OK() {
			t.Fatalf("own account: got %+v", got)
		}
		return
	}
	// As root, the same test runs again as another user.
	path := program(t, s.dir, "proctest")
	c := s.command(t, path+" -test.run '^TestNonRootAgent' -test.v")
	c.Account, c.Key = "nobody", "outer" // the inner test ends what carries its own name
	if got := run(t, s, c); !got.OK() || !strings.Contains(got.Output, "PASS: TestNonRootAgent") {
		t.Fatalf("got %+v", got)
	}
}

func TestSetupPathProblems(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.write(t, "file", "", 0o600)
	for dir, want := range map[string]string{
		filepath.Join(s.dir, "none"): "does not exist",
		filepath.Join(s.dir, "file"): "is not a directory",
		"relative":                   "not absolute",
	} {
		c := s.command(t, "true")
		c.Dir = dir
		if _, err := s.runner.Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", dir, err, want)
		}
	}
}

func TestSetupPathClosedToTheAccount(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	s := newShop(t)
	private := filepath.Join(s.dir, "private")
	if err := os.MkdirAll(filepath.Join(private, "app"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := s.command(t, "true")
	c.Dir, c.Account = filepath.Join(private, "app"), "nobody"
	_, err := s.runner.Start(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "account nobody: "+private+" has mode 0700") {
		t.Fatalf("got %v, want the directory that bars the way", err)
	}
}

func TestProgramsThatCannotRun(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.write(t, "plain", "echo plain runs\n", 0o700)
	s.write(t, "crlf", "#!/bin/sh\r\necho x\r\n", 0o700)
	s.write(t, "noexec", "#!/bin/sh\necho x\n", 0o600)
	for line, want := range map[string]string{
		"./plain": "exit=0", "./crlf": "Windows line ends", "./noexec": "exit=126 (not executable: ", "./none": "exit=127 (not found: ",
	} {
		if got := run(t, s, s.command(t, line)); !strings.Contains(got.String(), want) {
			t.Errorf("%s: got %s with output %q, want %q", line, got, got.Output, want)
		}
	}
}

func TestProgramBeingWrittenIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.write(t, "app", "#!/bin/sh\necho new\n", 0o700)
	writer, err := os.OpenFile(filepath.Join(s.dir, "app"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	c := s.command(t, "./app")
	if got := run(t, s, c); !strings.Contains(got.String(), "is being written") {
		t.Errorf("held for writing: got %s with output %q", got, got.Output)
	}
	closed := time.AfterFunc(busyWait/5, func() { writer.Close() })
	defer closed.Stop()
	if got := run(t, s, c); got.Output != "new\n" {
		t.Errorf("after the writer closed: got %+v", got)
	}
}

func TestLoginProfile(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for profile, want := range map[string]string{
		"echo hello; export FROM_PROFILE=yes": "hello\nran yes\n",
		"exit 3":                              "",
	} {
		s.write(t, ".profile", profile+"\n", 0o600)
		c := s.command(t, `echo "ran $FROM_PROFILE"`)
		c.LoginProfile, c.Env = true, map[string]string{"HOME": s.dir}
		got := run(t, s, c)
		if got.Output != want || want == "" && got.ExitCode != 3 {
			t.Errorf("%s: got %+v, want output %q", profile, got, want)
		}
	}
}

func TestCommandWithoutADirectoryRunsInTheHomeOfTheAccount(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	account, err := s.runner.accounts.Lookup(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for home, want := range map[string]string{account.Home: account.Home, "/no/such/home": "/"} {
		account.Home = home
		s.runner.accounts.known[account.Name] = knownAccount{account: account, until: time.Now().Add(time.Hour)}
		c := s.command(t, "pwd")
		c.Dir = ""
		if got := run(t, s, c); got.Output != want+"\n" {
			t.Errorf("with home %s: got %+v, want output %q", home, got, want)
		}
	}
}

func TestOutputGoesOnAfterTheCommandHasEnded(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	c := s.command(t, "(while [ ! -e go ]; do sleep 0.02; done; echo late) & echo early")
	running, err := s.runner.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	<-running.Done()
	if got := running.Result().Output; got != "early\n" || !running.Result().OutputHeld {
		t.Fatalf("got %q, want early", got)
	}
	s.write(t, "go", "", 0o644)
	eventually(t, "what the background wrote is there", func() bool { return running.Output() == "early\nlate\n" })
}

func TestBadCommands(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for want, change := range map[string]func(*Command){
		`shell: "bat" runs on Windows only`: func(c *Command) { c.Shell = ShellBat },
		"command is empty":                  func(c *Command) { c.Line = "" },
		"more than 32768":                   func(c *Command) { c.Line = strings.Repeat("x", MaxLine+1) },
		"NUL":                               func(c *Command) { c.Line = "a\x00" },
		"not a valid variable":              func(c *Command) { c.Env = map[string]string{"A=B": ""} },
		"output file":                       func(c *Command) { c.OutputPath = "/none/x" },
	} {
		c := s.command(t, "true")
		change(&c)
		if _, err := s.runner.Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestLineIsExecutedLiterally(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	got := run(t, s, s.command(t, "printf '%s\\n' \"$0\" 'a  b' \"ü\" '$x;|&'\n# comment\necho \"$(echo last)\""))
	if !strings.HasSuffix(got.Output, "a  b\nü\n$x;|&\nlast\n") {
		t.Fatalf("got %q", got.Output)
	}
}

func TestAccountsAreRemembered(t *testing.T) {
	t.Parallel()
	now := time.Now()
	accounts := NewAccounts()
	accounts.now = func() time.Time { return now }
	own, err := accounts.Lookup(t.Context(), "")
	if err != nil || int(own.UID) != os.Geteuid() {
		t.Fatalf("got %+v, %v; want the agent's own account", own, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if again, err := accounts.Lookup(gone, ""); err != nil || again.Name != own.Name {
		t.Errorf("within the time: got %+v, %v", again, err)
	}
	now = now.Add(accountTTL)
	if _, err := accounts.Lookup(gone, ""); err == nil {
		t.Error("after the time the host was not asked")
	}
}
