package operate

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// lookAlike starts the rig's program from its setup path without the agent: no pid file names
// the process, and it carries no mark.
func (g *rig) lookAlike(args ...string) proc.Identity {
	g.t.Helper()
	cmd := exec.CommandContext(g.t.Context(), filepath.Join(g.dir, demoName), args...)
	cmd.Dir, cmd.Env = g.dir, []string{"GORACE=atexit_sleep_ms=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	id, err := proc.Identify(cmd.Process.Pid)
	if err != nil {
		g.t.Fatal(err)
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		_ = cmd.Wait() // always fails: the test kills the process
	}()
	g.t.Cleanup(func() {
		_ = proc.Signal(id, syscall.SIGKILL)
		<-reaped
	})
	return id
}

// instance returns the spec of the n-th process of the rig's program: same name and setup
// path, own key and pid file.
func (g *rig) instance(n int) agentproto.Spec {
	name := "demo_" + strconv.Itoa(n)
	return g.spec(func(s *agentproto.Spec) {
		s.Key, s.PidPath = name, filepath.Join(g.dir, name+".pid")
		s.StartCmd = daemon("-pid " + name + ".pid")
	})
}

func (g *rig) unharmed(id proc.Identity) {
	g.t.Helper()
	if !proc.Alive(id) {
		g.t.Fatalf("%s was ended", id)
	}
}

func TestSecondInstanceStartsWhileTheFirstRuns(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	first := g.want("start", g.instance(1), 0, "").Status.PID
	if s := g.status(g.instance(2)); s.Running {
		t.Fatalf("status of the second shows pid %d: %s", s.PID, s.Evidence)
	}
	second := g.want("start", g.instance(2), 0, "").Status.PID
	if second == first {
		t.Fatalf("both are pid %d", first)
	}
	g.want("stop", g.instance(1), 0, "")
	g.want("stop", g.instance(1), 829, "")
	if s := g.status(g.instance(2)); s.PID != second || !s.Supervised {
		t.Fatalf("status of the second is %+v", s)
	}
	if pid := g.want("restart", g.instance(2), 0, "").Status.PID; pid == second {
		t.Fatalf("pid is still %d", pid)
	}
}

// TestAPidFileThatNamesTheProcessOfAnotherKeyIsStale: pid files survive a crash of the host,
// and the pids in them are reused.
func TestAPidFileThatNamesTheProcessOfAnotherKeyIsStale(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	first := g.want("start", g.instance(1), 0, "").Status.PID
	second := g.instance(2)
	g.write("demo_2.pid", strconv.Itoa(first))
	for _, when := range []string{"at once", "after a restart of the agent"} {
		s := g.status(second)
		if s.Running || !strings.Contains(s.Evidence, fmt.Sprintf("pid %d is the process of key demo_1", first)) {
			t.Errorf("%s: status of the second shows pid %d: %s", when, s.PID, s.Evidence)
		}
		g.want("stop", second, 829, "")
		g.crash()
		g.open()
	}
	if pid := g.want("start", second, 0, "").Status.PID; pid == first {
		t.Errorf("both are pid %d", first)
	}
	if s := g.status(g.instance(1)); s.PID != first || !s.Supervised {
		t.Errorf("status of the first is %+v, want pid %d", s, first)
	}
}

func TestInstancesAreToldApartAfterTheAgentRestarted(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	first := g.want("start", g.instance(1), 0, "").Status.PID
	g.crash()
	g.open()
	second := g.want("start", g.instance(2), 0, "").Status.PID
	sigkill(t, first)
	g.becomes(g.instance(1), "the first runs again", func(s agentproto.Status) bool {
		return s.Phase == "running" && s.Running && s.PID != first && s.PID != second
	})
}

func TestStartBesideALookAlikeRunsNothingAndOwnsNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 20 })
	other := g.lookAlike()
	r := g.want("start", spec, 828, fmt.Sprintf("start: process is already running, pid %d", other.PID))
	g.says(r, "no usable pid file")
	g.says(r, "by name and setup path")
	if !r.Status.Supervised || g.starts() != 0 {
		t.Fatalf("status %+v after %d starts", r.Status, g.starts())
	}
	for action, field := range map[string]string{"stop": "control.stop", "kill": "control.kill"} {
		r := g.want(action, spec, 65535, fmt.Sprintf("%s: pid %d has the name and path", action, other.PID))
		g.says(r, "not signaled; restore the pid file or set "+field)
		if !r.Status.Supervised {
			t.Fatalf("a refused %s changed supervision: %+v", action, r.Status)
		}
	}
	g.crash()
	g.open()
	g.want("stop", spec, 65535, "stop: pid")
	g.unharmed(other)
	if g.starts() != 0 {
		t.Fatalf("%d starts beside the look-alike", g.starts())
	}
	sigkill(t, other.PID)
	g.becomes(spec, "it is started once nothing like it runs", func(s agentproto.Status) bool {
		return s.Running && s.Phase == "running" && s.PID != other.PID
	})
	if g.starts() != 1 {
		t.Fatalf("%d starts, want 1", g.starts())
	}
}

func TestSuperviseBesideALookAlikeDoesNotStart(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 20 })
	g.want("supervise", g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 60_000 }), 0, "")
	other := g.lookAlike() // appears during the back-off
	g.becomes(spec, "the look-alike is seen", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID == other.PID })
	g.want("kill", spec, 65535, "kill: pid")
	g.want("supervise", spec, 0, "")
	g.unharmed(other)
	if g.starts() != 0 {
		t.Fatalf("%d starts beside the look-alike", g.starts())
	}
}

func TestStopCommandRunsForALookAlike(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	other := g.lookAlike()
	spec := g.spec(func(s *agentproto.Spec) { s.StopCmd = fmt.Sprint("kill ", other.PID) })
	g.want("stop", spec, 0, "")
	if proc.Alive(other) {
		t.Fatal("the stop command was not run")
	}
}

// TestRefusedStopLeavesNoClaim: the pid file of the second instance names a process for which
// operations on another instance were refused.
func TestRefusedStopLeavesNoClaim(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	other := g.lookAlike()
	for _, action := range []string{"start", "stop", "kill", "status", "supervise"} {
		g.do(action, g.instance(3))
	}
	if err := os.WriteFile(g.instance(4).PidPath, fmt.Appendln(nil, other.PID), 0o600); err != nil {
		t.Fatal(err)
	}
	g.want("kill", g.instance(4), 0, "")
	if proc.Alive(other) {
		t.Fatal("it was not killed")
	}
}

func TestPidFileBeatsASearchForTheSameProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	other := g.lookAlike()
	searched := g.instance(1)
	searched.PidPath = ""
	g.want("start", searched, 828, "")
	if err := os.WriteFile(g.instance(2).PidPath, fmt.Appendln(nil, other.PID), 0o600); err != nil {
		t.Fatal(err)
	}
	g.want("start", g.instance(2), 828, "")
	g.want("stop", searched, 829, "")
	g.unharmed(other)
	g.want("stop", g.instance(2), 0, "")
}

func TestStopDoesNotWaitForALookAlike(t *testing.T) {
	t.Parallel()
	for name, pidPath := range map[string]string{"pid file": "demo.pid", "search": ""} {
		for _, action := range []string{"stop", "kill"} {
			t.Run(name+" "+action, func(t *testing.T) {
				t.Parallel()
				g := newRig(t)
				spec := g.spec(func(s *agentproto.Spec) {
					if s.PidPath = ""; pidPath != "" {
						s.PidPath = filepath.Join(g.dir, pidPath)
					}
				})
				g.want("start", spec, 0, "")
				other := g.lookAlike()
				r := g.want(action, spec, 0, "")
				if r.Status.Running || r.Status.Supervised || r.Status.Phase != "stopped" {
					t.Fatalf("status is %+v", r.Status)
				}
				g.unharmed(other)
				if g.engine.Supervised() != 0 {
					t.Fatal("the look-alike is supervised")
				}
			})
		}
	}
}

func TestDeadProcessIsStartedAgainBesideALookAlike(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	pid := g.want("start", g.spec(), 0, "").Status.PID
	other := g.lookAlike()
	sigkill(t, pid)
	s := g.becomes(g.spec(), "it runs again", func(s agentproto.Status) bool {
		return s.Phase == "running" && s.Running && s.PID != pid
	})
	if s.PID == other.PID || g.starts() != 2 {
		t.Fatalf("pid %d (the look-alike is %d) after %d starts", s.PID, other.PID, g.starts())
	}
	g.unharmed(other)
}

// The actor is blocked when the death is reported, so that the status detects it first.
func TestStatusOfAProcessThatHasJustDiedShowsNoLookAlike(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	pid := g.want("start", g.spec(), 0, "").Status.PID
	release := g.ledger.holdSaves(g.dir)
	t.Cleanup(release)
	g.submit("supervise", g.spec(func(s *agentproto.Spec) { s.StartRetries++ }))
	g.eventually("its goroutine is busy", g.ledger.saveIsHeld)
	other := g.lookAlike()
	sigkill(t, pid)
	if s := g.status(g.spec()); s.Running || s.PID != 0 {
		t.Errorf("pid %d is shown, the look-alike is %d: %s", s.PID, other.PID, s.Evidence)
	}
	release()
	s := g.becomes(g.spec(), "it runs again", func(s agentproto.Status) bool { return s.Phase == "running" && s.Running })
	if s.PID == other.PID || g.starts() != 2 {
		t.Errorf("pid %d (the look-alike is %d) after %d starts", s.PID, other.PID, g.starts())
	}
	g.unharmed(other)
}

// The search after the command is the first one that can find the look-alike.
func TestLookAlikeThatBeganDuringAnOperationIsNotTheProcessAfterIt(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) {
		s.ReloadCmd = ">began; while [ ! -e go ] || [ ! -s demo.pid ]; do sleep 0.02; done; kill -9 $(cat demo.pid)"
	})
	pid := g.want("start", spec, 0, "").Status.PID
	reload := g.submit("reload", spec)
	g.eventually("the command runs", func() bool { _, err := os.Stat(filepath.Join(g.dir, "began")); return err == nil })
	other := g.lookAlike()
	if err := os.WriteFile(filepath.Join(g.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := g.check(g.result(reload), 836, "reload: process died")
	if r.Status.Running || r.Status.PID == other.PID {
		t.Errorf("pid %d is shown, the look-alike is %d", r.Status.PID, other.PID)
	}
	g.becomes(spec, "it runs again", func(s agentproto.Status) bool {
		return s.Phase == "running" && s.Running && s.PID != pid && s.PID != other.PID
	})
	g.unharmed(other)
}

func TestRestartBesideALookAlike(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	pid := g.want("start", g.spec(), 0, "").Status.PID
	other := g.lookAlike()
	r := g.want("restart", g.spec(), 0, "")
	if r.Status.PID == pid || r.Status.PID == other.PID {
		t.Fatalf("pid is %d, was %d, the look-alike is %d", r.Status.PID, pid, other.PID)
	}
	g.unharmed(other)
}

func TestRestartOfALookAlikeStartsNoSecondOne(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	other := g.lookAlike()
	g.want("restart", g.spec(), 65535, fmt.Sprintf("restart: pid %d has the name and path", other.PID))
	g.unharmed(other)
	if g.starts() != 0 {
		t.Fatalf("%d starts", g.starts())
	}
}

// TestDaemonThatWritesNoPidFile: the process is identified by the mark of its start command.
func TestDaemonThatWritesNoPidFile(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd = daemon("") })
	g.want("start", spec, 0, "")
	g.want("stop", spec, 0, "")
}

func TestBuiltinStopThatTimesOutPointsToKill(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd = started("-ignore-term") })
	g.startDeaf(spec)
	spec.OpTimeoutMS = 500
	g.says(g.want("stop", spec, 836, "stop: still running pid"), "kill")
}

func TestWorkersOfOneInstanceDoNotKeepAnotherFromStarting(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	first := g.instance(1)
	first.StartCmd = daemon("-worker -pid demo_1.pid")
	g.want("start", first, 0, "")
	second := g.instance(2)
	second.PidPath = "" // only a search finds the process
	g.want("start", second, 0, "")
	g.want("stop", second, 0, "")
	if s := g.status(first); !s.Running || !s.Supervised {
		t.Fatalf("status of the first is %+v", s)
	}
}

func TestWorkerThatSurvivesAStopIsLeftBehind(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd = daemon("-worker -pid demo.pid") })
	g.want("start", spec, 0, "")
	g.eventually("there is a worker, which is made before the pid file", func() bool { _, err := os.Stat(spec.PidPath); return err == nil })
	r := g.want("stop", spec, 0, "")
	g.warned(r, "orphans of the process remain: pid")
	if r.Status.Running || r.Status.Supervised {
		t.Fatalf("status is %+v", r.Status)
	}
}

func TestStopThatBringsUpASuccessorFails(t *testing.T) {
	t.Parallel()
	for name, withPidFile := range map[string]bool{"pid file": true, "search": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			spec := g.spec(func(s *agentproto.Spec) {
				s.StartCmd = daemon("-pid demo.pid") + " while [ ! -s demo.pid ]; do sleep 0.02; done"
				s.StopCmd = term + "; rm demo.pid; " + s.StartCmd
				s.StopCheckMS = 1_000
				if !withPidFile {
					s.PidPath = ""
				}
			})
			g.want("start", spec, 0, "")
			g.says(g.want("stop", spec, 836, "stop: still running pid"), "which replaced pid")
		})
	}
}
