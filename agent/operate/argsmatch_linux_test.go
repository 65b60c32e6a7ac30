package operate

import (
	"fmt"
	"testing"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// copyOf returns the spec of one of several copies of the rig's program that differ only in
// their arguments.
func (g *rig) copyOf(tag string) agentproto.Spec {
	return g.spec(func(s *agentproto.Spec) {
		s.Key, s.PidPath, s.ArgsPattern = "shop:"+tag, "", "-tag "+tag+"$"
		s.StartCmd = daemon("-tag " + tag)
	})
}

func TestCopiesThatRunAlreadyAreToldApartByTheirArguments(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	a, b, c := g.copyOf("a"), g.copyOf("b"), g.copyOf("c")
	first, second := g.lookAlike("-tag", "a"), g.lookAlike("-tag", "b")
	if s := g.status(c); s.Running {
		t.Fatalf("a copy that does not run is shown: %+v", s)
	}
	g.want("start", a, 828, fmt.Sprintf("start: process is already running, pid %d", first.PID))
	g.want("supervise", b, 0, "")
	g.want("stop", c, 829, "")
	third := g.want("start", c, 0, "").Status.PID
	for spec, pid := range map[*agentproto.Spec]int{&a: first.PID, &b: second.PID, &c: third} {
		if s := g.status(*spec); s.PID != pid || !s.Supervised {
			t.Errorf("%s is %+v, want pid %d", spec.Key, s, pid)
		}
	}

	g.want("stop", a, 0, "")
	if proc.Alive(first) || !proc.Alive(second) {
		t.Fatalf("after the stop of the first: %v, %v", proc.Alive(first), proc.Alive(second))
	}
	g.crash()
	g.open()
	if s := g.status(b); s.PID != second.PID || !s.Supervised {
		t.Fatalf("after the agent restarted: %+v", s)
	}
	g.want("kill", b, 0, "")
	if s := g.status(c); s.PID != third || s.Phase != "running" {
		t.Fatalf("the third is %+v", s)
	}
	if g.starts() != 1 {
		t.Errorf("%d starts, want one", g.starts())
	}
}

func TestACopyThatDiedIsStartedThoughAnotherRuns(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	a, b := g.copyOf("a"), g.copyOf("b")
	first := g.want("start", a, 0, "").Status.PID
	second := g.want("start", b, 0, "").Status.PID
	sigkill(t, first)
	g.becomes(a, "it runs again", func(s agentproto.Status) bool {
		return s.Running && s.Phase == "running" && s.PID != first && s.PID != second
	})
	if s := g.status(b); s.PID != second {
		t.Errorf("the other is %+v", s)
	}
}

func TestStartOfAProgramWithOtherArgumentsFails(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.copyOf("a")
	spec.StartCmd = daemon("-tag b")
	g.says(g.want("start", spec, 836, "start: post-check: no process"), "no demo with a command line that matches -tag a$ runs under")
}

// Without setup path and pid file, a process is found only by the mark of the key's commands.
// Adding a pattern later must not change that mark.
func TestAPatternThatIsAddedFindsWhatRuns(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.copyOf("a")
	spec.StartCmd = "cd " + g.dir + "; " + spec.StartCmd
	spec.SetupPath, spec.ArgsPattern = "", ""
	pid := g.want("start", spec, 0, "").Status.PID
	spec.ArgsPattern = "-tag a$"
	g.want("start", spec, 828, fmt.Sprintf("start: process is already running, pid %d", pid))
	spec.ArgsPattern = "-tag b$"
	g.want("stop", spec, 829, "")
	spec.ArgsPattern = "-tag a$"
	g.want("stop", spec, 0, "")
}
