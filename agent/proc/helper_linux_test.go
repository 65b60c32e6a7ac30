package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/internal/testenv"
)

// scenarioVar makes the test binary play a managed program instead of testing.
// Its value is the scenario, with an argument after '='.
const scenarioVar = "PROCFLEET_PROC_HELPER"

// deadMan ends every helper, whatever happens to its test.
const deadMan = 60 * time.Second

func TestMain(m *testing.M) {
	scenario, ok := os.LookupEnv(scenarioVar)
	if !ok {
		testenv.WithoutProfile()
		goleak.VerifyTestMain(m)
		return
	}
	time.AfterFunc(deadMan, func() { os.Exit(99) })
	name, arg, _ := strings.Cut(scenario, "=")
	play, ok := scenarios[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "unknown scenario", name)
		os.Exit(98)
	}
	play(arg)
}

var scenarios = map[string]func(arg string){
	"sleep":         func(string) { ready(os.Getpid()); hang() },
	"ignore-term":   func(string) { signal.Ignore(syscall.SIGTERM); ready(os.Getpid()); hang() },
	"thread":        playThread,
	"zombie-parent": playZombieParent,
	"workers":       playWorkers,
	"bomb":          playBomb,
	"busy":          playBusy,
	"glutton":       playGlutton,
	"rename":        playRename,
	"daemon":        playDaemon,
	"hold":          playHold,
	"spew":          playSpew,
	"limits":        playLimits,
	"find":          playFind,
	"first":         playFirst,
}

// ready sends a number to the test, on the first line of stdout.
func ready(n int) { fmt.Println(n) }

func hang() { select {} }

// await polls inside a helper, which the dead man ends in any case.
func await(condition func() bool) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		<-tick.C
	}
}

// again starts this program once more with another scenario.
func again(scenario string, attr *syscall.SysProcAttr) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), os.Args[0])
	cmd.Env = append(os.Environ(), scenarioVar+"="+scenario)
	cmd.SysProcAttr = attr
	return cmd
}

func playThread(string) {
	runtime.LockOSThread()
	tids := make(chan int)
	go func() {
		runtime.LockOSThread()
		tids <- unix.Gettid()
		hang()
	}()
	ready(<-tids)
	hang()
}

func playZombieParent(string) {
	child := again("exit", nil) // an unknown scenario ends at once
	must(child.Start())
	await(func() bool {
		st, err := ReadStat(child.Process.Pid)
		return err == nil && st.State == 'Z'
	})
	ready(child.Process.Pid)
	hang()
}

// playWorkers starts n workers, every second one in a session of its own.
func playWorkers(arg string) {
	n, err := strconv.Atoi(arg)
	must(err)
	for i := range n {
		must(again("sleep", &syscall.SysProcAttr{Setsid: i%2 == 1}).Start())
	}
	ready(os.Getpid())
	hang()
}

// bombGenerations bounds the bomb to 2^7 - 1 processes, in case the test cannot kill it.
const bombGenerations = 6

// playBomb is a process whose children have children, all of them while the
// test tries to kill them.
func playBomb(arg string) {
	generation, err := strconv.Atoi(arg)
	must(err)
	if generation == 0 {
		ready(os.Getpid())
	}
	for i := 0; i < 2 && generation < bombGenerations; i++ {
		_ = again(fmt.Sprintf("bomb=%d", generation+1), nil).Start()
	}
	hang()
}

// playBusy uses one CPU.
func playBusy(string) {
	ready(os.Getpid())
	for {
		_ = strings.Repeat("busy", 1000)
	}
}

func playRename(string) {
	runtime.LockOSThread()
	must(os.WriteFile("/proc/self/comm", []byte("other"), 0o600))
	ready(os.Getpid())
	hang()
}

// playDaemon acts like a start script: it starts a daemon in a session of its own and exits.
// The daemon writes the pid file.
func playDaemon(pidFile string) {
	cmd := again("sleep", &syscall.SysProcAttr{Setsid: true})
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	must(cmd.Start())
	must(os.WriteFile(pidFile, []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o600))
}

// playHold is a daemon that keeps its stdout: it writes 10 MB once the file
// "go" exists, and then creates the file "written".
func playHold(dir string) {
	if !strings.HasPrefix(dir, "child:") {
		cmd := again("hold=child:"+dir, &syscall.SysProcAttr{Setsid: true})
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		must(cmd.Start())
		ready(cmd.Process.Pid)
		return
	}
	dir = strings.TrimPrefix(dir, "child:")
	await(func() bool {
		_, err := os.Stat(filepath.Join(dir, "go"))
		return err == nil
	})
	_, err := io.CopyN(os.Stdout, endless{}, 10<<20)
	must(err)
	must(os.WriteFile(filepath.Join(dir, "written"), nil, 0o600))
	hang()
}

func playSpew(arg string) {
	n, err := strconv.ParseInt(arg, 10, 64)
	must(err)
	_, err = io.CopyN(os.Stdout, endless{}, n)
	must(err)
	fmt.Println("the end")
}

// playLimits runs `ulimit -n` through a runner under a lowered soft limit.
func playLimits(dir string) {
	accounts := NewAccounts()
	runner, err := NewRunner(accounts)
	must(err)
	own, err := accounts.Lookup(context.Background(), "")
	must(err)
	c := Command{Line: "ulimit -n", Dir: dir, Account: own.Name, OutputPath: filepath.Join(dir, "limits.out")}
	running, err := runner.Start(context.Background(), c)
	must(err)
	<-running.Done()
	fmt.Print(running.Result().Output)
}

// playFind prints what an agent without root finds for the process of the pid file while /proc
// hides other users' processes.
func playFind(pidPath string) {
	must(unix.Mount("proc", "/proc", "proc", 0, "hidepid=2"))
	must(syscall.Setgroups(nil))
	must(syscall.Setgid(65534))
	must(syscall.Setuid(65534))
	target := Target{ProcName: "app", SetupPath: filepath.Dir(pidPath), PidPath: pidPath}
	got := NewFinder(NewAccounts()).Find(context.Background(), target)
	fmt.Printf("%s: %s\n", got.Verdict, got.Evidence)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = "0123456789abcde\n"[i%16]
	}
	return len(p), nil
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(97)
	}
}

// program copies or links the test binary into a directory under the given name, so that a
// process started from it has the paths and the name of a managed program.
func program(t *testing.T, dir, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if os.Link(self, path) == nil {
		return path
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// helper is one running program of a test.
type helper struct {
	cmd   *exec.Cmd
	id    Identity
	ready int // the number that the scenario sent with ready
}

// spawn starts a program with a scenario in its own session and waits until it
// is ready. It is killed and reaped at the end of the test.
func spawn(t *testing.T, path, dir, scenario string, args ...string) *helper {
	t.Helper()
	return spawnAs(t, append([]string{path}, args...), path, dir, scenario)
}

// spawnAs is spawn with a command line that need not begin with the path.
func spawnAs(t *testing.T, commandLine []string, path, dir, scenario string) *helper {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), path)
	cmd.Args = commandLine
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), scenarioVar+"="+scenario, KeyMark+"="+t.Name())
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd.Stdout = write
	err = cmd.Start()
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endMarked(t); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	h := &helper{cmd: cmd}
	if _, err := fmt.Fscan(read, &h.ready); err != nil {
		t.Fatalf("scenario %s did not get ready: %v", scenario, err)
	}
	if h.id, err = Identify(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return h
}

// endMarked kills the descendants that the test's processes left running.
func endMarked(t *testing.T) {
	t.Helper()
	strays, err := NewFinder(NewAccounts()).Orphans(KillScope{Key: t.Name()})
	if err != nil {
		t.Error(err)
	}
	for _, p := range strays {
		if p.PID != os.Getpid() {
			_ = Signal(p.Identity, syscall.SIGKILL)
			eventually(t, "a killed process ends", func() bool { _, err := statOf(p.Identity); return errors.Is(err, ErrGone) })
		}
	}
}

// patience is for what must happen in the end, on a busy machine. Helpers live
// as long.
const patience = deadMan

// eventually polls a condition; it fails the test after [patience].
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}
