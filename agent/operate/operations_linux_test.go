package operate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestRestartMustReplaceTheProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.RestartCmd = "true" })
	pid := g.want("start", spec, 0, "").Status.PID
	g.want("restart", spec, 836, fmt.Sprintf("restart: process was not replaced, pid %d", pid))
	spec.RestartInPlace = true
	if r := g.want("restart", spec, 0, ""); r.Status.PID != pid {
		t.Fatalf("pid is %d, want %d", r.Status.PID, pid)
	}
	spec.RestartCmd, spec.RestartInPlace = term+"; "+spec.StartCmd, false
	if r := g.want("restart", spec, 0, ""); r.Status.PID == pid || !r.Status.Supervised {
		t.Fatalf("status is %+v", r.Status)
	}
}

func TestRestartStartsAndRegisters(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec()
	first := g.want("restart", spec, 0, "").Status
	if !first.Running || !first.Supervised {
		t.Fatalf("status is %+v", first)
	}
	second := g.want("restart", spec, 0, "").Status
	if second.PID == first.PID || g.starts() != 2 || len(g.running()) != 1 {
		t.Fatalf("pid %d then %d, %d starts, %v running", first.PID, second.PID, g.starts(), g.running())
	}
}

func TestReloadThatKillsTheProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.ReloadCmd = "true" })
	pid := g.want("start", spec, 0, "").Status.PID
	if r := g.want("reload", spec, 0, ""); r.Status.PID != pid {
		t.Fatalf("pid is %d, want %d", r.Status.PID, pid)
	}
	spec.ReloadCmd = pidWritten + "kill -9 $(cat demo.pid)"
	r := g.want("reload", spec, 836, "reload: process died")
	if !r.Status.Supervised || r.Status.Phase != "backoff" {
		t.Fatalf("status is %+v", r.Status)
	}
	g.becomes(spec, "it is started again", func(s agentproto.Status) bool { return s.Running })
	spec.ReloadCmd = "exit 4"
	g.want("reload", spec, 65535, "reload: command failed; exit=4")
}

// Callers retry refused operations, so an operation that has acted must not be refused.
func TestAnOperationThatHasActedIsNotRefused(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t) // only root may create the other account's link that makes the pid file unreadable
	for action, change := range map[string]func(s *agentproto.Spec, command string){
		"start":   func(s *agentproto.Spec, command string) { s.StartCmd = command },
		"restart": func(s *agentproto.Spec, command string) { s.RestartCmd = command },
		"reload":  func(s *agentproto.Spec, command string) { s.ReloadCmd = command },
	} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			if action != "start" {
				g.want("start", g.spec(), 0, "")
			}
			spec := g.spec(func(s *agentproto.Spec) {
				change(s, "echo >>ran; [ ! -e demo.pid ] || kill -9 $(cat demo.pid); rm -f demo.pid; ln -s /proc/self/exe demo.pid; chown -h 65534 demo.pid")
			})
			r := g.want(action, spec, 836, action+": state uncertain")
			if r.Reason != agentproto.ReasonCheckFailed || g.lines("ran") != 1 {
				t.Errorf("reason is %s after %d commands: %s", r.Reason, g.lines("ran"), r.Message)
			}
			r = g.want(action, spec, 65535, action+": state uncertain")
			if r.Reason != agentproto.ReasonRefused || g.lines("ran") != 1 {
				t.Errorf("reason of the repeat is %s after %d commands: %s", r.Reason, g.lines("ran"), r.Message)
			}
		})
	}
}

func TestSuperviseIsIdempotentAndStarts(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.CPULimit, s.MemoryLimit = 50, 50 })
	r := g.want("supervise", spec, 0, "")
	if len(r.Warnings) > 0 {
		t.Fatalf("warnings are %q", r.Warnings)
	}
	if !r.Status.Supervised || r.Status.Running {
		t.Fatalf("status is %+v", r.Status)
	}
	g.want("supervise", spec, 0, "")
	g.becomes(spec, "it is started", func(s agentproto.Status) bool { return s.Running && s.Supervised })
	if g.starts() != 1 {
		t.Fatalf("%d starts, want 1", g.starts())
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.want("release", g.spec(), 0, "")
	pid := g.want("start", g.spec(), 0, "").Status.PID
	r := g.want("release", g.spec(), 0, "")
	if r.Status.Supervised || r.Status.PID != pid || g.engine.Supervised() != 0 {
		t.Fatalf("status is %+v", r.Status)
	}
	sigkill(t, pid)
	g.becomes(g.spec(), "it is gone", func(s agentproto.Status) bool { return !s.Running && s.Phase == "stopped" })
	if g.starts() != 1 {
		t.Fatalf("%d starts, want 1", g.starts())
	}
}

func TestUnknownAction(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	if r := g.want("explode", g.spec(), 832, `unknown action "explode"`); r.Reason != "refused" {
		t.Fatalf("reason is %q", r.Reason)
	}
}

func TestZombieCountsAsDead(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	install(t, g.dir, keeperName)
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; setsid ./keeper -pid demo.pid >/dev/null 2>&1 </dev/null & " + pidLives
		s.StartIntervalMS = 60_000
	})
	pid := g.want("start", spec, 0, "").Status.PID
	sigkill(t, pid)
	g.becomes(spec, "its death is noticed", func(s agentproto.Status) bool { return s.Phase == "backoff" && !s.Running })
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("pid %d is no zombie: %v", pid, err)
	}
	g.want("stop", spec, 829, "stop:")
}

func TestOneShotThatEndsAtOnce(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*agentproto.Spec){
		"once":                      func(s *agentproto.Spec) { s.Type = "once" },
		"periodic without schedule": func(s *agentproto.Spec) { s.Type = "periodic" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			spec := g.spec(change, func(s *agentproto.Spec) { s.StartCmd = "echo >>starts" })
			r := g.want("start", spec, 0, "")
			if r.Status.Running || r.Status.Supervised || r.Status.PID != 0 {
				t.Fatalf("status is %+v", r.Status)
			}
			spec.StartCmd = "exit 5"
			g.want("start", spec, 65535, "start: command failed; exit=5")
		})
	}
}

func TestManualProcessIsVerifiedAndNotKeptAlive(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	manually := func(s *agentproto.Spec) { s.Type = procspec.Manual }
	g.want("start", g.spec(manually, func(s *agentproto.Spec) { s.StartCmd = "true" }), 836, "start: post-check: no process within")
	spec := g.spec(manually)
	r := g.want("start", spec, 0, "")
	if !r.Status.Running || r.Status.Supervised {
		t.Fatalf("status is %+v", r.Status)
	}
	sigkill(t, r.Status.PID)
	g.want("stop", spec, 829, "stop:")
	g.want("restart", spec, 0, "")
}

func TestTwoKeysWithOneProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	pid := g.want("start", g.spec(), 0, "").Status.PID
	second := g.spec(func(s *agentproto.Spec) { s.Key = "ns:other" })
	for action, name := range map[string]string{"start": "start", "stop": "stop", "supervise": "register", "kill": "kill"} {
		r := g.want(action, second, 65535, fmt.Sprintf("%s: pid %d belongs to key %s", name, pid, g.dir))
		if r.Status.Supervised {
			t.Fatalf("status is %+v", r.Status)
		}
	}
	if s := g.status(second); s.PID != pid {
		t.Fatalf("status of the second key shows pid %d, want %d", s.PID, pid)
	}
}

func TestCommandIsGivenToTheShellAsItIs(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.want("start", g.spec(func(s *agentproto.Spec) {
		s.Type, s.StartCmd = "once", "printf '%s' '$(x) \"ü\"; é\n' >out"
	}), 0, "")
	text, err := os.ReadFile(filepath.Join(g.dir, "out"))
	if err != nil || string(text) != "$(x) \"ü\"; é\n" {
		t.Fatalf("wrote %q, %v", text, err)
	}
}

func TestStatusDuringALongStart(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd, s.OpTimeoutMS = "echo >>starts; sleep 100", 2_000 })
	id := g.submit("start", spec)
	g.eventually("the command runs", func() bool { return g.starts() == 1 })
	s := g.status(spec)
	if s.Phase != "starting" || !strings.Contains(s.Evidence, "busy: start") {
		t.Fatalf("status is %+v", s)
	}
	g.mu.Lock()
	_, over := g.results[id]
	g.mu.Unlock()
	if over {
		t.Fatal("the start was over before the status")
	}
	g.check(g.result(id), 65535, "start: command timed out")
}

func TestStalePidFileIsMovedAside(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd = "[ ! -e demo.pid ] && " + s.StartCmd })
	if err := os.WriteFile(spec.PidPath, []byte("4194303\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g.want("start", spec, 0, "")
	if _, err := os.Stat(spec.PidPath + ".stale"); err != nil {
		t.Fatal(err)
	}
}

func TestJournalThatFailsKeepsEverythingFromHappening(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.ledger.setBroken(errors.New("journal unavailable: disk is full"))
	id := g.submit("start", g.spec())
	g.eventually("the operation is refused and its result held back", func() bool {
		g.ledger.mu.Lock()
		defer g.ledger.mu.Unlock()
		return g.ledger.failed >= 3
	})
	if g.starts() != 0 {
		t.Fatal("a command ran without being in the journal")
	}
	g.ledger.setBroken(nil)
	g.check(g.result(id), 117, "start: journal unavailable: disk is full")
	g.want("start", g.spec(), 0, "")
}

func TestBadSpecIsTheItemsOwnFailure(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	r := g.want("start", g.spec(func(s *agentproto.Spec) { s.SetupPath = "opt" }), 65535, `start: bad spec: setup_path "opt" is not absolute`)
	if r.Reason != "refused" || r.Status.Running {
		t.Fatalf("result is %+v", r)
	}
	scheduled := g.spec(func(s *agentproto.Spec) { s.Type, s.Crontab, s.Instances = procspec.Periodic, "daily", 3 })
	g.want("supervise", scheduled, 65535, `register: bad spec: alive.crontab (crontab_rule) "daily"`)
	g.want("reload", g.spec(), 65535, "reload: bad spec: control.reload (reload_cmd) is empty")
	pid := g.want("start", g.spec(), 0, "").Status.PID
	if s := g.status(scheduled); s.PID != pid {
		t.Fatalf("status shows pid %d, want %d", s.PID, pid)
	}
	g.want("release", scheduled, 0, "")
	g.want("stop", scheduled, 0, "")
	if g.starts() != 1 {
		t.Fatalf("%d starts, want 1", g.starts())
	}
}

func TestPanicGivesBackWhatTheOperationHeld(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) {
		c.CommandLimit = 1
		healthy := false
		c.Crash = func(point string) {
			if point == CrashAfterSpawn && !healthy {
				healthy = true
				panic("test")
			}
		}
	})
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd, s.Type = "true", "once" })
	g.want("start", spec, 117, "start: internal error: test")
	g.want("start", spec, 0, "")
}

func TestPanicAfterAnOperationLeavesTheNextOne(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) {
		finished, broken := c.Finished, true
		c.Finished = func(op journal.Op, r agentproto.Result) {
			finished(op, r)
			if broken {
				broken = false
				panic("test")
			}
		}
	})
	first, second := g.submit("start", g.spec()), g.submit("stop", g.spec())
	g.check(g.result(first), 0, "")
	g.check(g.result(second), 0, "")
	g.engine.Stop(t.Context()) // must not block
}

// An operation with the spec of another program finds that program. The supervised process of
// the key must not change.
func TestOperationForAnotherProgramGivesTheSupervisedOneToNobody(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec()
	pid := g.want("start", spec, 0, "").Status.PID
	elsewhere := &rig{t: t, dir: t.TempDir()}
	install(t, elsewhere.dir, demoName)
	elsewhere.lookAlike()
	other := spec
	other.SetupPath, other.PidPath, other.ReloadCmd = elsewhere.dir, "", "true"
	g.want("reload", other, 0, "")
	thief := spec
	thief.Key = "thief"
	g.want("start", thief, 65535, fmt.Sprintf("start: pid %d belongs to key %s", pid, g.dir))
	if s := g.status(spec); s.PID != pid || !s.Supervised {
		t.Fatalf("status is %+v, want pid %d", s, pid)
	}
}
