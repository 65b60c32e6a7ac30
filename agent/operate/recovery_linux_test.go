package operate

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// whenLogged is a hook that is called on every error that is logged.
type whenLogged func()

func (h whenLogged) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }
func (h whenLogged) Fire(*logrus.Entry) error {
	h()
	return nil
}

// amend changes the stored record of a process.
func (g *rig) amend(key string, change func(*record)) {
	g.t.Helper()
	g.ledger.mu.Lock()
	defer g.ledger.mu.Unlock()
	var rec record
	if err := json.Unmarshal(g.ledger.processes[key], &rec); err != nil {
		g.t.Fatal(err)
	}
	change(&rec)
	text, err := json.Marshal(rec)
	if err != nil {
		g.t.Fatal(err)
	}
	g.ledger.processes[key] = text
}

// A run that becomes due while the engine still recovers other processes must not begin while
// the start command of the earlier agent runs.
func TestNothingIsStartedBeforeTheOperationsOfTheEarlierAgentAreKnown(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.job(time.Hour, "")
	spec.StartCmd, spec.OpTimeoutMS = g.slowSpec().StartCmd, patience.Milliseconds()
	g.want("supervise", spec, 0, "")
	id := g.submit("start", spec)
	g.eventually("its command runs", func() bool { return g.starts() == 1 })
	g.crash()
	g.amend(spec.Key, func(r *record) {
		r.Spec.CycleTimeMS = 100
		r.Rhythm.Anchor = r.Rhythm.Anchor.Add(-time.Hour)
	})
	for n := range 8 { // unreadable records, which prolong the recovery
		g.ledger.processes[fmt.Sprint("torn ", n)] = json.RawMessage(`"torn"`)
	}
	log, ok := g.cfg.Log.(*logrus.Logger)
	if !ok {
		t.Fatalf("log is a %T", g.cfg.Log)
	}
	log.AddHook(whenLogged(func() {
		for end := time.Now().Add(200 * time.Millisecond); g.starts() == 1 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	}))
	g.open()
	g.write("go", "")
	g.check(g.result(id), 0, "")
	g.one(spec, 1)
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
			g.check(r, 65535, "start: agent restarted during operation; process may have run and ended")
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
		spec := g.spec(func(s *agentproto.Spec) { s.StopCmd, s.StopCheckMS = "echo >>stops; "+term, 200 })
		pid := g.want("start", spec, 0, "").Status.PID
		r := crashIn(g, "stop", spec, CrashBeforeExec)
		g.check(r, 836, fmt.Sprintf("stop: interrupted by agent restart; still running pid %d", pid))
		if !r.Status.Supervised {
			t.Fatal("it is not supervised any more")
		}
	})
	t.Run("stop that kills after its grace", func(t *testing.T) {
		t.Parallel()
		g := newRig(t)
		spec := g.deaf()
		g.startDeaf(spec)
		r := crashIn(g, "stop", spec, CrashBeforeExec)
		g.warned(g.check(r, 0, ""), "did not stop within 0.3 s, killed")
	})
	t.Run("stop command that was not run kills nothing", func(t *testing.T) {
		t.Parallel()
		g := newRig(t)
		spec := g.deaf(func(s *agentproto.Spec) { s.StopCmd, s.StopCheckMS = term, 200 })
		pid := g.startDeaf(spec)
		r := crashIn(g, "stop", spec, CrashBeforeExec)
		g.check(r, 836, fmt.Sprintf("stop: interrupted by agent restart; still running pid %d", pid))
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
		spec := g.spec(func(s *agentproto.Spec) { s.StopCmd = term })
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
		ID: old, Action: "stop", Spec: g.spec(), Fence: -1, AcceptedAt: time.Now().Add(-time.Hour), ReceivedAt: time.Now().Add(-time.Hour),
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
