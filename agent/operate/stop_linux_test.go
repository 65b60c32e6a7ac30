package operate

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

func TestStopOfAProcessThatIgnoresIt(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd, s.StopCmd, s.StopCheckMS = started("-ignore-term"), term, 300
	})
	pid := g.startDeaf(spec)
	r := g.want("stop", spec, 836, fmt.Sprintf("stop: still running pid %d after 300ms", pid))
	if !r.Status.Supervised || r.Status.Phase != "running" {
		t.Fatalf("status is %+v, want as before", r.Status)
	}
	r = g.want("kill", spec, 0, "")
	if r.Status.Supervised || r.Status.Running || len(g.running()) != 0 {
		t.Fatalf("status is %+v with %v running", r.Status, g.running())
	}
}

// deaf returns the spec of a program that ignores SIGTERM. Its stop kills it after a short grace.
func (g *rig) deaf(change ...func(*agentproto.Spec)) agentproto.Spec {
	return g.spec(append([]func(*agentproto.Spec){func(s *agentproto.Spec) {
		s.StartCmd, s.StopGraceMS = started("-ignore-term"), 300
	}}, change...)...)
}

func TestStopKillsAProcessThatIgnoresSIGTERM(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*agentproto.Spec){
		"signal":         func(*agentproto.Spec) {},
		"command":        func(s *agentproto.Spec) { s.StopCmd = term },
		"failed command": func(s *agentproto.Spec) { s.StopCmd = "exit 3" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			spec := g.deaf(change)
			g.startDeaf(spec)
			r := g.want("stop", spec, 0, "")
			g.warned(r, "did not stop within 0.3 s, killed")
			if r.Status.Supervised || r.Status.Phase != "stopped" || len(g.running()) != 0 {
				t.Fatalf("status is %+v with %v running", r.Status, g.running())
			}
		})
	}
}

func TestStopKillsBeforeTheOperationTimeout(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*agentproto.Spec){
		"signal":       func(*agentproto.Spec) {},
		"hung command": func(s *agentproto.Spec) { s.StopCmd = "sleep 100" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			spec := g.deaf(change)
			g.startDeaf(spec)
			spec.OpTimeoutMS, spec.StopGraceMS = 1_000, 60_000
			g.warned(g.want("stop", spec, 0, ""), "did not stop within 0.5 s, killed")
		})
	}
}

func TestStopWithGraceKillsNoProcessThatStopsInTime(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	for _, command := range []string{term, ""} {
		spec := g.spec(func(s *agentproto.Spec) { s.StopGraceMS, s.StopCmd = 4_000, command })
		g.want("start", spec, 0, "")
		if r := g.want("stop", spec, 0, ""); len(r.Warnings) != 0 {
			t.Fatalf("warnings are %q", r.Warnings)
		}
	}
}

func TestRestartKillsAProcessThatIgnoresSIGTERM(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.deaf()
	before := g.startDeaf(spec)
	r := g.want("restart", spec, 0, "")
	g.warned(r, "did not stop within 0.3 s, killed")
	if !r.Status.Running || r.Status.PID == before {
		t.Fatalf("status is %+v, want another pid than %d", r.Status, before)
	}
}

// TestStopKillsNoLookAlike: the pid file does not name the process, so it may be a foreign one.
func TestStopKillsNoLookAlike(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	foreign := g.lookAlike("-ignore-term")
	spec := g.deaf(func(s *agentproto.Spec) { s.StopCmd, s.StopCheckMS = "true", 100 })
	g.want("stop", spec, 836, "stop: still running pid")
	g.unharmed(foreign)
}

func TestBuiltinStopOfAStoppedProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	pid := g.want("start", g.spec(), 0, "").Status.PID
	id, err := proc.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Signal(id, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g.want("stop", g.spec(), 0, "")
}

func TestBuiltinStop(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec()
	g.want("start", spec, 0, "")
	if r := g.want("stop", spec, 0, ""); r.Status.Supervised || r.Status.Phase != "stopped" {
		t.Fatalf("status is %+v", r.Status)
	}
	spec.StartCmd = started("-ignore-term")
	g.startDeaf(spec)
	spec.OpTimeoutMS = 500
	g.want("stop", spec, 836, "stop: still running pid")
}

// TestAStopDoesNotWaitForTheLongestPause: the first poll after SIGTERM finds the process alive,
// so a constant pause would make each stop that long.
func TestAStopDoesNotWaitForTheLongestPause(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.Timing.StopPoll = time.Hour })
	g.want("start", g.spec(), 0, "")
	g.want("stop", g.spec(), 0, "")
	g.want("start", g.spec(), 0, "")
	g.want("kill", g.spec(), 0, "")
}

func TestChildrenThatSurviveTheMainProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; setsid sleep 100 >/dev/null 2>&1 & setsid ./demo -pid demo.pid >/dev/null 2>&1 </dev/null & " + pidLives
	})
	g.want("start", spec, 0, "")
	r := g.want("stop", spec, 0, "")
	g.warned(r, "orphans of the process remain: pid")
	r = g.want("kill", spec, 0, "")
	g.warned(r, "killed its orphans")
	left, err := g.engine.host.Finder.Orphans(proc.KillScope{Key: g.mark()})
	if err != nil || len(left) != 0 {
		t.Fatalf("left behind: %v %v", left, err)
	}
	g.want("kill", spec, 829, "kill: process is not running")
}

// elsewhere returns spec with another setup path, in which it installs the program.
func elsewhere(t *testing.T, spec agentproto.Spec) agentproto.Spec {
	t.Helper()
	spec.SetupPath = t.TempDir()
	spec.PidPath = filepath.Join(spec.SetupPath, "demo.pid")
	install(t, spec.SetupPath, demoName)
	return spec
}

// TestProcessOfAnotherKeyIsNotLeftBehind: the start command of one key also starts the program
// of a second key, which then carries the mark of the first.
func TestProcessOfAnotherKeyIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	second := elsewhere(t, g.spec())
	second.Key = "second"
	g.want("start", g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "(cd " + second.SetupPath + " && " + daemon("-pid demo.pid") + "); " + daemon("-pid demo.pid")
	}), 0, "")
	g.eventually("the second program has written its pid file", func() bool {
		written, err := os.ReadFile(second.PidPath)
		return err == nil && len(written) != 0
	})
	g.want("start", second, 828, "")
	if r := g.want("stop", g.spec(), 0, ""); len(r.Warnings) != 0 {
		t.Fatalf("warnings are %q", r.Warnings)
	}
	if s := g.status(second); !s.Running || !s.Supervised {
		t.Fatalf("status is %+v", s)
	}
}

func TestStopAndKillOfADeadProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	if r := g.want("stop", g.spec(), 829, "stop: process is not running"); r.Status.Supervised || r.Reason != "not_running" {
		t.Fatalf("result is %+v", r)
	}
	g.want("kill", g.spec(), 829, "kill: process is not running")
}

func TestStopInBackoffAndFatal(t *testing.T) {
	t.Parallel()
	for _, phase := range []string{"backoff", "fatal"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			spec := g.spec(func(s *agentproto.Spec) {
				if s.StartIntervalMS = 60_000; phase == "fatal" {
					s.StartRetries = 0
				}
			})
			sigkill(t, g.want("start", spec, 0, "").Status.PID)
			s := g.becomes(spec, phase, func(s agentproto.Status) bool { return s.Phase == phase })
			if !s.Supervised || s.Failures != 1 || s.NextRetryAt.IsZero() || s.LastExit == nil {
				t.Fatalf("status is %+v", s)
			}
			if r := g.want("stop", spec, 829, "stop:"); r.Status.Supervised || r.Status.Phase != "stopped" {
				t.Fatalf("status is %+v", r.Status)
			}
			if g.starts() != 1 || g.engine.Supervised() != 0 {
				t.Fatalf("%d starts, %d supervised", g.starts(), g.engine.Supervised())
			}
		})
	}
}

func TestFailedStopCommandThatReachesItsGoal(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StopCmd = term + "; echo sorry; exit 7" })
	g.want("start", spec, 0, "")
	r := g.want("stop", spec, 0, "success")
	g.warned(r, "exit=7")
	g.warned(r, "sorry")
}

func TestFailedStopCommandThatDoesNot(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StopCmd, s.StopCheckMS = "exit 7", 100 })
	g.want("start", spec, 0, "")
	r := g.want("stop", spec, 65535, "stop: command failed; exit=7; still running pid")
	if !r.Status.Supervised {
		t.Fatal("a failed stop must not end supervision")
	}
}

func TestStopWaitsForTheProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.StartCmd, s.StopCmd = started("-linger 800ms"), term
	})
	g.want("start", spec, 0, "")
	r := g.want("stop", spec, 0, "")
	if took := r.FinishedAt.Sub(r.StartedAt); took < 700*time.Millisecond {
		t.Fatalf("took %s, want the process's time to end", took)
	}
}

func TestKillCommand(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.KillCmd = pidWritten + "kill -9 $(cat demo.pid)" })
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
