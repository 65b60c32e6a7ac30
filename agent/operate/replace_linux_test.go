package operate

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
)

// TestTwoSpecsOfOneProcessNeverRunBoth: a start or restart with the spec of another program left
// the process of the spec before running beside the new one.
func TestTwoSpecsOfOneProcessNeverRunBoth(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"start", "restart"} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			before := g.spec(func(s *agentproto.Spec) {
				s.StopCmd = "echo >>stops; " + term
			})
			old := g.want("start", before, 0, "").Status.PID
			after := elsewhere(t, g.spec())
			r := g.want(action, after, 0, "")
			g.warned(r, fmt.Sprintf("replaced pid %d of the previous spec", old))
			if !r.Status.Supervised || r.Status.PID == old || g.lines("stops") != 1 {
				t.Fatalf("status is %+v after %d stop commands of the previous spec", r.Status, g.lines("stops"))
			}
			if s := g.status(before); s.Running {
				t.Fatalf("the previous process still runs: %+v", s)
			}
			again := g.want(action, before, 0, "")
			g.warned(again, fmt.Sprintf("replaced pid %d", r.Status.PID))
			if s := g.status(after); s.Running {
				t.Fatalf("the second process still runs: %+v", s)
			}
		})
	}
}

func TestARefusedReplacementLeavesThePreviousProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	old := g.want("start", g.spec(), 0, "").Status.PID
	missing := g.spec(func(s *agentproto.Spec) { s.SetupPath += "/missing" })
	g.want("start", missing, agentproto.CodeFailed, "start: setup path "+missing.SetupPath+" does not exist")
	stubborn := elsewhere(t, g.spec())
	if s := g.status(g.spec()); s.PID != old || !s.Supervised {
		t.Fatalf("status is %+v, want pid %d", s, old)
	}
	g.want("start", stubborn, 0, "")
}

func TestAPreviousProcessThatDoesNotStopIsNotReplaced(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	before := g.spec(func(s *agentproto.Spec) { s.StopCmd, s.StopCheckMS = "true", 100 })
	old := g.want("start", before, 0, "").Status.PID
	r := g.want("restart", elsewhere(t, g.spec()), agentproto.CodeCheckFailed,
		fmt.Sprintf("restart: the process of the previous spec, pid %d, was not stopped: still running pid %d", old, old))
	g.says(r, "the new one was not started")
	if s := g.status(before); s.PID != old || !s.Supervised || g.starts() != 1 {
		t.Fatalf("status is %+v after %d starts", s, g.starts())
	}
}

// TestAFailedReplacementDoesNotStartThePreviousProcess: supervision would start the process of
// the stored spec beside the new one.
func TestAFailedReplacementDoesNotStartThePreviousProcess(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	before := g.spec(func(s *agentproto.Spec) { s.StartCmd = "echo >>first; " + s.StartCmd })
	old := g.want("start", before, 0, "").Status.PID
	after := elsewhere(t, g.spec(func(s *agentproto.Spec) { s.StartCmd, s.StartIntervalMS = "exit 3", 60_000 }))
	r := g.want("start", after, agentproto.CodeFailed, "start: command failed; exit=3")
	g.says(r, fmt.Sprintf("the process of the previous spec, pid %d, was stopped; neither runs", old))
	if !r.Status.Supervised || r.Status.Phase != "backoff" {
		t.Fatalf("status is %+v, want further attempts with the new spec", r.Status)
	}
	if s := g.status(before); s.Running || g.lines("first") != 1 {
		t.Fatalf("the previous process was started again: %+v", s)
	}
	if after.StartCmd = g.spec().StartCmd; !g.want("start", after, 0, "").Status.Supervised {
		t.Fatal("the corrected spec is not supervised")
	}
}

// TestAReplacementIsTrueIfTheAgentDies: the agent dies before the command that stops the
// previous process, and before the command that starts the new one.
func TestAReplacementIsTrueIfTheAgentDies(t *testing.T) {
	t.Parallel()
	for at, fatal := range map[string]int32{"stop": 2, "start": 3} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			var commands atomic.Int32
			g := newRig(t, func(c *Config) {
				c.Crash = func(point string) {
					if point == CrashAfterSpawn && commands.Add(1) == fatal {
						runtime.Goexit()
					}
				}
			})
			before := g.spec(func(s *agentproto.Spec) { s.StopCmd = "echo >>stops; " + term })
			g.want("start", before, 0, "")
			after := elsewhere(t, g.spec())
			id := g.submit("restart", after)
			g.eventually("the agent dies after the previous process was stopped", func() bool {
				return commands.Load() == fatal && g.lines("stops") == 1 && !g.status(before).Running
			})
			g.crash()
			g.open()
			r := g.result(id)
			if at == "start" {
				g.check(r, 0, "")
			} else {
				g.check(r, agentproto.CodeFailed, "restart: agent restarted during operation; process not running")
			}
			s := g.becomes(after, "the new process runs", func(s agentproto.Status) bool { return s.Running && s.Supervised })
			if old := g.status(before); old.Running || g.lines("stops") != 1 {
				t.Fatalf("both run: %+v and %+v; %d stop commands", old, s, g.lines("stops"))
			}
		})
	}
}
