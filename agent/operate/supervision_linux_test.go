package operate

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

func TestDeadProcessIsStartedAgain(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	pid := g.want("start", g.spec(), 0, "").Status.PID
	for range 2 {
		sigkill(t, pid)
		s := g.becomes(g.spec(), "it runs again", func(s agentproto.Status) bool {
			return s.Phase == "running" && s.Running && s.PID != pid
		})
		pid = s.PID
	}
	if g.starts() != 3 {
		t.Fatalf("%d starts, want 3", g.starts())
	}
}

func TestProcessThatDiesRightAfterTheWindow(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd, s.StartIntervalMS = daemon("-pid demo.pid -life 700ms"), 60_000 })
	g.want("start", spec, 0, "")
	g.becomes(spec, "its death counts", func(s agentproto.Status) bool { return s.Phase == "backoff" && s.Failures == 1 })
}

func TestCrashLoopIsGivenUpAndSurvivesTheAgent(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; [ $(wc -l <starts) -gt 1 ] && exit 1; setsid ./demo -pid demo.pid -life 1s >/dev/null 2>&1 </dev/null &"
		s.StartRetries, s.StartIntervalMS = 3, 50
	})
	g.want("start", spec, 0, "")
	s := g.becomes(spec, "it is given up", func(s agentproto.Status) bool { return s.Phase == "fatal" })
	if g.starts() != 1+3 || !s.Supervised || s.Failures != 4 {
		t.Fatalf("%d starts, status %+v", g.starts(), s)
	}
	g.crash()
	g.open()
	if s := g.status(spec); s.Phase != "fatal" || !s.Supervised || s.Failures != 4 {
		t.Fatalf("status after the agent's restart is %+v", s)
	}
	if err := os.Remove(filepath.Join(g.dir, "starts")); err != nil {
		t.Fatal(err)
	}
	g.want("start", spec, 0, "")
}

func TestProcessStartedByHandIsAdopted(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 60_000 })
	sigkill(t, g.want("start", spec, 0, "").Status.PID)
	g.becomes(spec, "backoff", func(s agentproto.Status) bool { return s.Phase == "backoff" })
	pid := startByHand(t, g)
	s := g.becomes(spec, "it is adopted", func(s agentproto.Status) bool { return s.Phase == "running" })
	if s.PID != pid || g.starts() != 1 {
		t.Fatalf("adopted pid %d after %d starts, want %d after 1", s.PID, g.starts(), pid)
	}
	g.want("stop", spec, 0, "")
}

func TestReplacedProcessIsAdopted(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 60_000 })
	old := g.want("start", spec, 0, "").Status.PID
	pid := startByHand(t, g)
	sigkill(t, old)
	s := g.becomes(spec, "the successor is adopted", func(s agentproto.Status) bool { return s.PID == pid && s.Phase == "running" })
	if s.Failures != 0 || g.starts() != 1 {
		t.Fatalf("%d failures, %d starts", s.Failures, g.starts())
	}
	g.want("stop", spec, 0, "")
}

// startByHand starts the program without the agent and returns its pid.
func startByHand(t *testing.T, g *rig) int {
	t.Helper()
	// An earlier process may still be about to write its pid file, or may have been killed
	// before it did.
	g.eventually("what runs has written its pid file", func() bool {
		_, err := os.Stat(g.spec().PidPath)
		return err == nil || len(g.running()) == 0
	})
	if err := os.Remove(g.spec().PidPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	runner, err := proc.NewRunner(proc.NewAccounts())
	if err != nil {
		t.Fatal(err)
	}
	exec, err := runner.Start(t.Context(), proc.Command{
		Line: "setsid ./demo -pid demo.pid >/dev/null 2>&1 </dev/null &", Dir: g.dir, Key: g.mark(), Account: g.account,
		OutputPath: filepath.Join(t.TempDir(), "out"),
	})
	if err != nil {
		t.Fatal(err)
	}
	<-exec.Done()
	var pid int
	g.eventually("the pid file names it", func() bool {
		text, err := os.ReadFile(filepath.Join(g.dir, "demo.pid"))
		if err != nil {
			return false
		}
		n, err := fmt.Sscan(string(text), &pid)
		return n == 1 && err == nil
	})
	return pid
}

func TestOperationDuringAnAutomaticStartWaitsForItsCommandOnly(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 10 })
	sigkill(t, g.want("start", spec, 0, "").Status.PID)
	g.eventually("it is started again", func() bool { return g.starts() > 1 })
	r := g.do("stop", spec)
	if r.Code != 0 && r.Code != 829 || r.Status.Supervised {
		t.Fatalf("stop: %d %s", r.Code, r.Message)
	}
	g.eventually("nothing runs", func() bool { return len(g.running()) == 0 })
}

func TestRandomStartsAndStops(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCheckBeginMS, s.StartCheckEndMS, s.StartIntervalMS = 0, 0, 20 })
	rounds := 12
	for range rounds {
		var last string
		var ids []journal.ID
		for range 1 + rand.IntN(6) {
			last = []string{"start", "stop", "restart", "kill"}[rand.IntN(4)]
			ids = append(ids, g.submit(last, spec))
		}
		for _, id := range ids {
			if r := g.result(id); r.Code != 0 && r.Code != 828 && r.Code != 829 {
				t.Fatalf("%v: %d %s", id, r.Code, r.Message)
			}
		}
		want := 0
		if last == "start" || last == "restart" {
			want = 1
		}
		g.eventually(fmt.Sprintf("%d processes run after a %s", want, last), func() bool { return len(g.running()) == want })
		if s := g.status(spec); s.Supervised != (want == 1) {
			t.Fatalf("status after %s is %+v", last, s)
		}
	}
	for id, n := range g.ledger.finishes {
		if n != 1 {
			t.Errorf("%v was finished %d times", id, n)
		}
	}
}

// counted is a command that records how many commands of its kind run at the same time.
const counted = "mkdir ../running.$$; ls -d ../running.* | wc -l >>../parallel; sleep 0.1; rmdir ../running.$$;"

// specs returns the specs of count daemons, each with a folder of its own in the rig's.
func (g *rig) specs(count int) []agentproto.Spec {
	g.t.Helper()
	var specs []agentproto.Spec
	for i := range count {
		dir := filepath.Join(g.dir, fmt.Sprint("p", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			g.t.Fatal(err)
		}
		install(g.t, dir, demoName)
		specs = append(specs, g.spec(func(s *agentproto.Spec) {
			s.Key, s.SetupPath, s.PidPath = dir, dir, filepath.Join(dir, "demo.pid")
			s.StartCmd = "echo >>../starts; setsid ./demo -pid demo.pid >/dev/null 2>&1 </dev/null &"
		}))
	}
	return specs
}

// startAll starts all processes at once and returns their pids.
func (g *rig) startAll(specs []agentproto.Spec) []int {
	g.t.Helper()
	var ids []journal.ID
	for _, spec := range specs {
		ids = append(ids, g.submit("start", spec))
	}
	var pids []int
	for _, id := range ids {
		pids = append(pids, g.check(g.result(id), 0, "").Status.PID)
	}
	return pids
}

// parallel fails if more than limit counted commands ran at the same time.
func (g *rig) parallel(limit int) {
	g.t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, "parallel"))
	if err != nil {
		g.t.Fatal(err)
	}
	for field := range strings.FieldsSeq(string(text)) {
		if n, err := strconv.Atoi(field); err != nil || n > limit {
			g.t.Fatalf("commands at a time were %q, want at most %d", text, limit)
		}
	}
}

func TestCommandLimit(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.CommandLimit = 2 })
	specs := g.specs(6)
	for i := range specs {
		specs[i].Type, specs[i].StartCmd, specs[i].PidPath = "once", counted, ""
	}
	g.startAll(specs)
	g.parallel(2)
}

func TestStartLimit(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.StartLimit = 2 })
	specs := g.specs(6)
	pids := g.startAll(specs)
	for i := range specs {
		specs[i].StartCmd = counted + specs[i].StartCmd
	}
	for i, spec := range specs {
		g.want("supervise", spec, 0, "")
		sigkill(t, pids[i])
	}
	for i, spec := range specs {
		g.becomes(spec, "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != pids[i] })
	}
	g.parallel(2)
}

func TestAdoption(t *testing.T) {
	t.Parallel()
	const count, dead = 20, 3
	g := newRig(t)
	specs := g.specs(count)
	pids := g.startAll(specs)
	g.crash()
	for _, pid := range pids[:dead] {
		sigkill(t, pid)
	}
	g.open()
	if n := g.engine.Supervised(); n != count {
		t.Fatalf("%d supervised, want %d", n, count)
	}
	for i, spec := range specs {
		s := g.becomes(spec, "it runs", func(s agentproto.Status) bool { return s.Running && s.Phase == "running" && s.Supervised })
		if died := i < dead; (s.PID != pids[i]) != died {
			t.Errorf("process %d has pid %d after the agent's restart, %d before", i, s.PID, pids[i])
		}
	}
	if g.starts() != count+dead {
		t.Fatalf("%d starts, want %d", g.starts(), count+dead)
	}
}

// die makes the first goroutine that reaches the crash point end there, as SIGKILL would.
func die(at string) func(*Config) {
	var reached atomic.Bool
	return func(c *Config) {
		c.Crash = func(point string) {
			if point == at && reached.CompareAndSwap(false, true) {
				runtime.Goexit()
			}
		}
	}
}

func TestCrashAtEveryPointOfAStart(t *testing.T) {
	t.Parallel()
	for point, want := range map[string]struct {
		code, starts int
		message      string
	}{
		CrashBeforeExec: {65535, 0, "start: agent restarted during operation; process not running"},
		CrashAfterSpawn: {0, 1, "success"},
		CrashBeforeDone: {0, 1, "success"},
		CrashAfterDone:  {0, 1, "success"},
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, die(point))
			id := g.submit("start", g.spec())
			g.eventually("the point is reached", func() bool {
				g.ledger.mu.Lock()
				defer g.ledger.mu.Unlock()
				_, executing := g.ledger.execs[id]
				return executing && g.starts() == want.starts
			})
			if point == CrashBeforeDone || point == CrashAfterDone {
				g.eventually("the process runs", func() bool { return len(g.running()) == 1 })
				g.eventually("the operation is through", func() bool { return g.engine.snapshotOf(g.dir).supervised() })
			}
			g.crash()
			g.open()
			g.eventually("there is a result", func() bool {
				g.ledger.mu.Lock()
				defer g.ledger.mu.Unlock()
				return g.ledger.finishes[id] == 1
			})
			r := g.ledger.results[id]
			g.check(r, want.code, want.message)
			if up := want.code == 0; r.Status.Supervised != up || r.Status.Running != up {
				t.Fatalf("status is %+v", r.Status)
			}
			if g.starts() != want.starts {
				t.Fatalf("%d starts, want %d", g.starts(), want.starts)
			}
		})
	}
}

// TestProgramThatEndsByItselfWasCutOff: the absence of such a program does not show whether its
// command has run.
func TestProgramThatEndsByItselfWasCutOff(t *testing.T) {
	t.Parallel()
	for _, point := range []string{CrashBeforeExec, CrashAfterSpawn} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			spec := g.spec(func(s *agentproto.Spec) { s.Type, s.StartCmd, s.PidPath = "once", "echo >>starts", "" })
			r := crashIn(g, "start", spec, point)
			g.check(r, 65535, "start: agent restarted during operation; whether the process ran is not known")
		})
	}
}

func TestDaemonComesUpWhileTheAgentIsDown(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; sleep 1; setsid ./demo -pid demo.pid >/dev/null 2>&1 </dev/null &"
	})
	id := g.submit("start", spec)
	g.eventually("the command runs", func() bool { return g.starts() == 1 })
	g.crash()
	g.open()
	r := g.check(g.result(id), 0, "")
	if !r.Status.Supervised || g.starts() != 1 || len(g.running()) != 1 {
		t.Fatalf("status %+v after %d starts with %v running", r.Status, g.starts(), g.running())
	}
	g.warned(r, "recovered")
}

func TestInterruptedOperationsAreJudgedByWhatIsThere(t *testing.T) {
	t.Parallel()
	t.Run("stop that was not sent", func(t *testing.T) {
		t.Parallel()
		g := newRig(t)
		spec := g.spec(func(s *agentproto.Spec) { s.StopCmd, s.StopCheckMS = "echo >>stops; kill $(cat demo.pid)", 200 })
		pid := g.want("start", spec, 0, "").Status.PID
		r := crashIn(g, "stop", spec, CrashBeforeExec)
		g.check(r, 836, fmt.Sprintf("stop: interrupted by agent restart; still running pid %d", pid))
		if !r.Status.Supervised {
			t.Fatal("it is not supervised any more")
		}
	})
	t.Run("kill that was not sent", func(t *testing.T) {
		t.Parallel()
		g := newRig(t)
		g.want("start", g.spec(func(s *agentproto.Spec) { s.StopCheckMS = 100 }), 0, "")
		r := crashIn(g, "kill", g.spec(func(s *agentproto.Spec) { s.StopCheckMS = 100 }), CrashBeforeExec)
		g.check(r, 836, "kill: interrupted by agent restart")
	})
	t.Run("kill that had stopped it", func(t *testing.T) {
		t.Parallel()
		g := newRig(t)
		spec := g.spec(func(s *agentproto.Spec) { s.StopCheckMS = 100 })
		pid := g.want("start", spec, 0, "").Status.PID
		id, err := proc.Identify(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := proc.Signal(id, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		g.check(crashIn(g, "kill", spec, CrashBeforeExec), 836, "kill: interrupted by agent restart")
		g.becomes(spec, "it goes on", func(s agentproto.Status) bool { return s.Running && s.Stat != "T" })
	})
	t.Run("stop that was sent", func(t *testing.T) {
		t.Parallel()
		g := newRig(t)
		g.want("start", g.spec(), 0, "")
		spec := g.spec(func(s *agentproto.Spec) { s.StopCmd = "kill $(cat demo.pid)" })
		r := crashIn(g, "stop", spec, CrashAfterSpawn)
		g.check(r, 0, "")
		if r.Status.Supervised {
			t.Fatal("it is still supervised")
		}
	})
	t.Run("restart that was not run", func(t *testing.T) {
		t.Parallel()
		g := newRig(t)
		pid := g.want("start", g.spec(), 0, "").Status.PID
		r := crashIn(g, "restart", g.spec(func(s *agentproto.Spec) { s.RestartCmd = "true" }), CrashBeforeExec)
		g.check(r, 836, fmt.Sprintf("restart: process was not replaced, pid %d", pid))
	})
	t.Run("reload", func(t *testing.T) {
		t.Parallel()
		g := newRig(t)
		g.want("start", g.spec(), 0, "")
		r := crashIn(g, "reload", g.spec(func(s *agentproto.Spec) { s.ReloadCmd = "true" }), CrashAfterSpawn)
		g.check(r, 65535, "reload: interrupted by agent restart, outcome unknown")
		if !r.Status.Supervised || !r.Status.Running {
			t.Fatalf("status is %+v", r.Status)
		}
	})
}

// crashIn submits an operation to an engine that crashes at the point, and returns the result
// that the next engine reports.
func crashIn(g *rig, action string, spec agentproto.Spec, point string) agentproto.Result {
	g.t.Helper()
	g.crash()
	healthy := g.cfg.Crash
	die(point)(&g.cfg)
	dies := g.cfg.Crash
	var reached atomic.Bool
	g.cfg.Crash = func(at string) {
		if at == point {
			reached.Store(true)
		}
		dies(at)
	}
	g.open()
	id := g.submit(action, spec)
	// It is not enough that the journal has the operation: an engine that ends at that moment
	// may never reach the point.
	g.eventually("the operation comes to "+point, reached.Load)
	g.crash()
	g.cfg.Crash = healthy
	g.open()
	return g.result(id)
}

func TestOperationsThatHadNotBegun(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.crash()
	fresh, old := g.submit("start", g.spec()), journal.ID{Task: "old"}
	g.ledger.receive(journal.Op{
		ID: old, Action: "stop", Spec: g.spec(), Fence: -1, AcceptedAt: time.Now().Add(-time.Hour),
	})
	g.open()
	g.check(g.result(fresh), 0, "")
	g.check(g.result(old), 65535, "stop: agent restarted, not executed: too old")
}

// TestOperationOfBeforeAStepOfTheServersClockIsNotExecuted: while the agent was down, the
// server's clock was set back. The task has ended, although by that clock the deadline of its
// operation has not passed.
func TestOperationOfBeforeAStepOfTheServersClockIsNotExecuted(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.crash()
	ahead := time.Now().Add(time.Hour)
	id := journal.ID{Task: "ahead"}
	g.ledger.receive(journal.Op{
		ID: id, Action: "start", Spec: g.spec(), Fence: 1, AcceptedAt: time.Now(), ReceivedAt: ahead, NotAfter: ahead.Add(time.Minute),
	})
	g.open()
	g.check(g.result(id), 65535, "start: agent restarted, not executed: the servers' clock was set back")
	if g.starts() != 0 {
		t.Fatalf("%d starts, want none", g.starts())
	}
}

func TestStopLeavesProcessesAloneAndWaitsForOperations(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	id := g.submit("start", g.spec())
	g.eventually("the command runs", func() bool { return g.starts() == 1 })
	g.engine.Stop(t.Context())
	g.check(g.result(id), 0, "")
	if len(g.running()) != 1 {
		t.Fatalf("%v running, want one", g.running())
	}
	g.open()
}

func TestAgentRestartDuringAnAutomaticStart(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; if [ $(wc -l <starts) -gt 1 ]; then sleep 1; fi; setsid ./demo -pid demo.pid >/dev/null 2>&1 </dev/null &"
		s.StartIntervalMS = 20
	})
	sigkill(t, g.want("start", spec, 0, "").Status.PID)
	g.eventually("it is being started again", func() bool {
		g.ledger.mu.Lock()
		defer g.ledger.mu.Unlock()
		return g.starts() == 2 && strings.Contains(string(g.ledger.processes[spec.Key]), `"starting":{"boot_id"`)
	})
	g.crash()
	g.open()
	g.becomes(spec, "it runs", func(s agentproto.Status) bool { return s.Phase == "running" })
	if g.starts() != 2 || len(g.running()) != 1 {
		t.Fatalf("%d starts, %v running", g.starts(), g.running())
	}
}

func TestProgramThatRunsUnderAnotherName(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.ProcName = "server" })
	pid := g.want("start", spec, 0, "").Status.PID
	g.want("start", spec, 828, "start:")
	g.crash()
	g.open()
	g.becomes(spec, "it is adopted", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID == pid })
	sigkill(t, pid)
	g.becomes(spec, "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != pid })
	g.want("stop", spec, 0, "")
}

func TestKillCommand(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.KillCmd = "kill -9 $(cat demo.pid)" })
	g.want("start", spec, 0, "")
	if r := g.want("kill", spec, 0, ""); r.Status.Supervised || r.Status.Running {
		t.Fatalf("status is %+v", r.Status)
	}
	spec.KillCmd = "exit 3"
	g.want("start", spec, 0, "")
	r := g.want("kill", spec, 65535, "kill: command failed; exit=3; still running pid")
	if r.Status.Supervised {
		t.Fatal("a process that was to be killed must not be kept alive")
	}
}

func TestForegroundProcessOutlivesTheAgent(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd = "echo >>starts; exec ./demo -pid demo.pid" })
	id := g.submit("start", spec)
	g.eventually("the command runs", func() bool { return len(g.running()) == 1 })
	pid := g.running()[0]
	g.crash()
	g.open()
	if r := g.check(g.result(id), 0, ""); r.Status.PID != pid || !r.Status.Supervised || g.starts() != 1 {
		t.Fatalf("status %+v after %d starts, want pid %d", r.Status, g.starts(), pid)
	}
}
