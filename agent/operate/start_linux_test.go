package operate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

func TestStartVerifiesAndSupervises(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	r := g.want("start", g.spec(), 0, "success")
	s := r.Status
	if !s.Running || !s.Supervised || s.Phase != "running" || s.PID < 2 || s.AgentID != "agent-1" || s.RegisteredAt.IsZero() ||
		s.LastStartedAt.IsZero() || s.MemoryBytes == 0 || !strings.Contains(s.Command, "-pid") {
		t.Fatalf("status is %+v", s)
	}
	if g.engine.Supervised() != 1 {
		t.Fatalf("%d supervised, want 1", g.engine.Supervised())
	}
	if r.Item != 0 || r.Reason != "succeeded" || r.AcceptedAt.IsZero() || r.StartedAt.IsZero() || r.FinishedAt.IsZero() {
		t.Fatalf("result is %+v", r)
	}
}

func TestStartWithoutPidFileFindsTheProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	pid := g.want("start", g.spec(), 0, "").Status.PID
	g.eventually("the pid file, which may be late, is removed", func() bool { return os.Remove(g.spec().PidPath) == nil })
	r := g.want("start", g.spec(), 828, fmt.Sprintf("start: process is already running, pid %d", pid))
	if r.Status.PID != pid || g.starts() != 1 {
		t.Fatalf("pid %d after %d starts, want %d after 1", r.Status.PID, g.starts(), pid)
	}
}

// TestStartsDoNotWaitForEachOthersWindows: a start occupies a slot only while its command runs,
// so the start windows of many starts overlap.
func TestStartsDoNotWaitForEachOthersWindows(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.CommandLimit = 1 })
	first := g.submit("start", g.spec(func(s *agentproto.Spec) { s.StartCheckBeginMS, s.StartCheckEndMS = 60_000, 60_000 }))
	g.awaitCommand(first)
	second := elsewhere(t, g.spec())
	second.Key = "second"
	g.want("start", second, 0, "")
}

func TestLatePidFileWithinTheWindow(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.want("start", g.spec(func(s *agentproto.Spec) {
		s.StartCmd = daemon("-pid demo.pid -late 400ms")
		s.StartCheckBeginMS, s.StartCheckEndMS = 800, 800
	}), 0, "")
}

func TestPidFileThatNothingWritesIsAWarning(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		start string
		warns bool
	}{
		"not written":               {daemon(""), true},
		"not written in foreground": {"exec ./demo", true},
		"names another process":     {"echo 1048576 >demo.pid; " + daemon(""), true},
		"written":                   {"rm -f demo.pid; " + daemon("-pid demo.pid") + " while [ ! -s demo.pid ]; do sleep 0.02; done", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			spec := g.spec(func(s *agentproto.Spec) { s.StartCmd = c.start })
			for _, action := range []string{"start", "restart"} {
				r := g.want(action, spec, 0, "")
				want := fmt.Sprintf("pid file %s does not exist or does not name the running process, pid %d", spec.PidPath, r.Status.PID)
				if got := slices.Contains(r.Warnings, want); got != c.warns {
					t.Fatalf("%s: warnings are %q, want %v: %q", action, r.Warnings, c.warns, want)
				}
			}
			g.want("stop", spec, 0, "")
		})
	}
}

func TestProcessAppearsAfterTheWindow(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; (sleep 3; exec setsid ./demo -pid demo.pid) >/dev/null 2>&1 </dev/null &"
		s.StartCheckBeginMS, s.StartCheckEndMS = 100, 100
	})
	r := g.want("start", spec, 836, "start: post-check: no process within 100ms")
	if r.Status.Supervised {
		t.Fatal("a failed start must not register")
	}
	g.becomes(spec, "the late process runs", func(s agentproto.Status) bool { return s.Running })
	g.want("start", spec, 828, "start:")
}

func TestHungStartCommandIsEnded(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	r := g.want("start", g.spec(func(s *agentproto.Spec) {
		s.StartCmd, s.OpTimeoutMS = "echo begun; sleep 100 & sleep 100", 500
	}), 65535, "start: command timed out; timeout=500ms")
	g.says(r, "output tail: begun")
	left, err := g.engine.host.Finder.Orphans(proc.KillScope{Key: g.mark()})
	if err != nil || len(left) != 0 {
		t.Fatalf("left behind: %v %v", left, err)
	}
}

// TestATimeoutNamesWhatHung: a slow login profile was taken for a slow program.
func TestATimeoutNamesWhatHung(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.write("slow.sh", "echo initializing\nsleep 97\ntrue")
	r := g.want("start", g.spec(func(s *agentproto.Spec) {
		s.StartCmd, s.OpTimeoutMS = "true; sh slow.sh; true", 700
	}), 65535, "start: command timed out; timeout=700ms in `")
	g.says(r, "` → `sh slow.sh` → `sleep 97` (")
	g.says(r, "output tail: initializing")
}

func TestHungStartCommandWithTheDaemonUp(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	r := g.want("start", g.spec(func(s *agentproto.Spec) {
		s.StartCmd, s.OpTimeoutMS = daemon("-pid demo.pid")+" sleep 100", 700
	}), 65535, "start: command timed out")
	g.says(r, fmt.Sprintf("process is running, pid %d, not registered", r.Status.PID))
	if !r.Status.Running || r.Status.Supervised {
		t.Fatalf("status is %+v, want running and not supervised", r.Status)
	}
}

func TestForegroundStartCommand(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd = "echo >>starts; exec ./demo -pid demo.pid" })
	r := g.want("start", spec, 0, "")
	g.warned(r, "runs in foreground")
	sigkill(t, r.Status.PID)
	g.becomes(spec, "it is started again", func(s agentproto.Status) bool {
		return s.Running && s.PID != r.Status.PID && s.Phase == "running"
	})
	g.want("stop", spec, 0, "")
}

func TestDaemonThatKeepsItsOutputOpenSurvives(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd = "echo >>starts; setsid ./demo -pid demo.pid &" })
	r := g.want("start", spec, 0, "")
	held, err := filepath.Glob(filepath.Join(g.cfg.RunDir, "out-*.out"))
	if err != nil || len(held) != 1 {
		t.Fatalf("output files are %v %v, want the one that the daemon holds", held, err)
	}
	g.want("stop", spec, 0, "")
	g.eventually("the output file is removed", func() bool {
		_, err := os.Stat(held[0])
		return errors.Is(err, os.ErrNotExist)
	})
	if s := g.status(spec); s.Running || s.PID != 0 || r.Status.PID == 0 {
		t.Fatalf("status is %+v after the stop", s)
	}
}

func TestProcessThatDiesInTheWindow(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	began := time.Now()
	r := g.want("start", g.spec(func(s *agentproto.Spec) {
		s.StartCmd = daemon("-pid demo.pid -life 300ms")
		s.StartCheckBeginMS, s.StartCheckEndMS = 200, 15_000
	}), 836, "start: post-check: process ended within the start window")
	if took := time.Since(began); took > 10*time.Second {
		t.Fatalf("took %s, want an early failure", took)
	}
	if r.Status.Supervised {
		t.Fatal("a failed start must not register")
	}
}

func TestFailedStartCommandWithTheProcessAlive(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	r := g.want("start", g.spec(func(s *agentproto.Spec) {
		s.StartCmd = daemon("-pid demo.pid") + " while [ ! -s demo.pid ]; do sleep 0.02; done; echo oops; exit 3"
	}), 65535, "start: command failed; exit=3; process is running, pid ")
	g.says(r, "not registered; output tail: oops")
	if r.Status.Supervised || !r.Status.Running {
		t.Fatalf("status is %+v", r.Status)
	}
}

func TestHandoverWithinTheWindow(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	r := g.want("start", g.spec(func(s *agentproto.Spec) {
		s.StartCmd = daemon("-pid demo.pid -handover")
		s.StartCheckBeginMS, s.StartCheckEndMS = 500, 800
	}), 0, "")
	g.eventually("only the reported process is left", func() bool {
		pids := g.running()
		return len(pids) == 1 && pids[0] == r.Status.PID
	})
}

func TestStartOfARunningProcessRunsNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.want("start", g.spec(func(s *agentproto.Spec) { s.Type = "once" }), 0, "")
	r := g.want("start", g.spec(), 828, "start: process is already running")
	if g.starts() != 1 || !r.Status.Supervised || r.Reason != "already_running" {
		t.Fatalf("%d starts, status %+v", g.starts(), r.Status)
	}
	sigkill(t, r.Status.PID)
	g.becomes(g.spec(), "the adopted process is started again", func(s agentproto.Status) bool {
		return s.Running && s.PID != r.Status.PID
	})
}

func TestTwoStartsAtOnce(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	first, second := g.submit("start", g.spec()), g.submit("start", g.spec())
	g.check(g.result(first), 0, "")
	g.check(g.result(second), 828, "start:")
	if pids := g.running(); len(pids) != 1 || g.starts() != 1 {
		t.Fatalf("running %v after %d starts", pids, g.starts())
	}
}
