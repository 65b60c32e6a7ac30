package operate

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// keyed returns a spec with only a key and a process name. The program is in the rig's folder,
// which the spec does not contain.
func (g *rig) keyed(key string, change ...func(*agentproto.Spec)) agentproto.Spec {
	s := g.spec()
	s.Key, s.SetupPath, s.PidPath = key, "", ""
	s.StartCmd = fmt.Sprintf("cd %s; echo >>starts; setsid ./demo >/dev/null 2>&1 </dev/null &", g.dir)
	for _, fn := range change {
		fn(&s)
	}
	return s
}

func TestProcessWithoutPathsIsWhatTheAgentStarted(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	namesake, spec := g.lookAlike(), g.keyed("worker-1")
	if s := g.status(spec); s.Running {
		t.Fatalf("status before the start is %+v", s)
	}
	g.want("stop", spec, 829, "stop:")
	first := g.want("start", spec, 0, "").Status.PID
	if first == namesake.PID {
		t.Fatal("a process of the same name counts as started")
	}
	g.want("start", spec, 828, fmt.Sprintf("start: process is already running, pid %d", first))
	second := g.want("start", g.keyed("worker-2"), 0, "").Status.PID
	sigkill(t, first)
	again := g.becomes(spec, "it is kept alive", func(s agentproto.Status) bool { return s.Running && s.PID != first })
	if again.PID == second {
		t.Fatalf("pid %d is the other key's", second)
	}
	g.want("stop", spec, 0, "")
	if s := g.status(g.keyed("worker-2")); s.PID != second {
		t.Fatalf("the other key is %+v, want pid %d", s, second)
	}
	g.unharmed(namesake)
}

func TestProcessWithoutPathsIsFoundAgainAfterTheAgentRestarted(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]bool{"by its record": false, "by its mark": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			namesake, spec := g.lookAlike(), g.keyed("worker-1")
			pid := g.want("start", spec, 0, "").Status.PID
			g.crash()
			if forget {
				clear(g.ledger.processes)
			}
			g.open()
			if s := g.status(spec); s.PID != pid || s.Supervised == forget {
				t.Fatalf("status is %+v, want pid %d", s, pid)
			}
			g.want("start", spec, 828, "start:")
			g.want("stop", spec, 0, "")
			g.unharmed(namesake)
			if g.starts() != 1 {
				t.Fatalf("%d starts, want 1", g.starts())
			}
		})
	}
}

func TestProcessWithoutPathsIsFoundThoughTheAgentDiedDuringItsStart(t *testing.T) {
	t.Parallel()
	g := newRig(t, die(CrashAfterSpawn))
	g.lookAlike()
	spec := g.keyed("worker-1")
	id := g.submit("start", spec)
	g.eventually("the point is reached", func() bool { return g.starts() == 1 })
	g.crash()
	g.open()
	r := g.check(g.result(id), 0, "")
	if !r.Status.Supervised || g.starts() != 1 {
		t.Fatalf("status %+v after %d starts", r.Status, g.starts())
	}
}

func TestProcessWithoutPathsThatDropsItsEnvironment(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.keyed("worker-1", func(s *agentproto.Spec) {
		s.StartCmd = fmt.Sprintf("cd %s; env -i GORACE=atexit_sleep_ms=0 ./demo >/dev/null 2>&1 </dev/null &", g.dir)
	})
	pid := g.want("start", spec, 0, "").Status.PID
	g.crash()
	g.open()
	if s := g.status(spec); s.PID != pid || !s.Supervised {
		t.Fatalf("status is %+v, want pid %d", s, pid)
	}
	g.want("kill", spec, 0, "")
}

// script writes a script into the setup path, the conventional place for scripts.
func (g *rig) script(name, text string) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		g.t.Fatal(err)
	}
}

// scripted returns a spec with the conventional scripts, which run in the background.
func (g *rig) scripted() agentproto.Spec {
	return g.spec(func(s *agentproto.Spec) {
		s.StartCmd, s.StopCmd, s.StopCheckMS = "./start.sh demo &", "./stop.sh demo &", 500
		s.StartCheckBeginMS, s.StartCheckEndMS = 600, 600
	})
}

func TestFailureShowsWhatAScriptInBackgroundWrote(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.script("start.sh", "sleep 0.2; echo cannot bind port 80 >&2; exit 1")
	r := g.want("start", g.scripted(), 836, "start: post-check: no process within 600ms")
	g.says(r, "output tail: cannot bind port 80")

	g.script("start.sh", "echo starting $1; exec ./demo -pid demo.pid -ignore-term")
	g.want("start", g.scripted(), 0, "")
	g.script("stop.sh", "sleep 0.2; echo $1 does not listen >&2; exit 1")
	r = g.want("stop", g.scripted(), 836, "stop: still running pid")
	g.says(r, "output tail: demo does not listen")
}

func TestScriptThatIsTakingItsTimeIsNotTheProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.script("start.sh", "sleep 20")
	g.want("start", g.scripted(), 836, "start: post-check: no process within 600ms")
	if s := g.status(g.scripted()); s.Running {
		t.Fatalf("status is %+v", s)
	}
}

func TestWindowsScriptIsRefusedBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	pid := g.want("start", g.spec(), 0, "").Status.PID
	for _, action := range []string{
		agentproto.ActionStart, agentproto.ActionStop, agentproto.ActionStatus, agentproto.ActionSupervise,
		agentproto.ActionRelease, agentproto.ActionRestart, agentproto.ActionReload, agentproto.ActionKill,
	} {
		for _, shell := range []proc.Shell{proc.ShellBat, proc.ShellPS1} {
			r := g.want(action, g.spec(func(s *agentproto.Spec) { s.Shell = string(shell) }), 65535,
				fmt.Sprintf("%s: bad spec: control.shell (cmd_shell_ext): %q runs on Windows only", procspec.ActionName(action), shell))
			if r.Status.PID != pid || !r.Status.Supervised {
				t.Errorf("%s: status is %+v, want it as before", action, r.Status)
			}
		}
	}
	if g.starts() != 1 {
		t.Fatalf("%d starts, want 1", g.starts())
	}
}

func TestOneShotWithAScheduleAndInstancesRunsOnce(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.keyed("job", func(s *agentproto.Spec) {
		s.Type, s.CycleTimeMS, s.Instances, s.PidPath = "once", 10_000, 2, g.dir
		s.StartCmd = fmt.Sprintf("echo >>%s/starts", g.dir)
	})
	for runs := 1; runs <= 2; runs++ {
		r := g.want("start", spec, 0, "")
		g.warned(r, "(instance_num) 2")
		if r.Status.Supervised || g.starts() != runs {
			t.Fatalf("status %+v after %d starts, want %d", r.Status, g.starts(), runs)
		}
	}
}
