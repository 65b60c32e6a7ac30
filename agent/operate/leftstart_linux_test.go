package operate

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// slowSpec returns a spec whose start command waits for the file "go" before it starts the
// process in the background.
func (g *rig) slowSpec() agentproto.Spec {
	return g.spec(func(s *agentproto.Spec) {
		s.StartCmd = "echo >>starts; while [ ! -e go ]; do sleep 0.02; done; setsid ./demo -pid demo.pid >/dev/null 2>&1 </dev/null &"
		s.OpTimeoutMS, s.StartIntervalMS = patience.Milliseconds(), 1
	})
}

// leaveStart calls end, which ends the agent, during an automatic start.
func (g *rig) leaveStart(spec agentproto.Spec, end func()) {
	g.t.Helper()
	g.write("go", "")
	pid := g.want("start", spec, 0, "").Status.PID
	g.remove("go")
	sigkill(g.t, pid)
	g.eventually("it is started again", func() bool { return g.starts() == 2 })
	end()
}

// one fails unless exactly one process runs after the given number of start commands.
func (g *rig) one(spec agentproto.Spec, starts int) {
	g.t.Helper()
	g.becomes(spec, "it runs", func(s agentproto.Status) bool { return s.Phase == "running" && s.Running })
	g.swept()
	if n := len(g.running()); n != 1 || g.starts() != starts {
		g.t.Fatalf("%d processes after %d starts, want one after %d", n, g.starts(), starts)
	}
}

func TestStartCommandThatOutlivesItsAgentIsNotRunAgain(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.slowSpec()
	g.leaveStart(spec, g.crash)
	g.open()
	g.swept()
	g.write("go", "")
	g.one(spec, 2)
}

func TestOperationWaitsForTheStartCommandOfAnEarlierAgent(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]int{"start": 828, "stop": 0, "restart": 0, "kill": 0} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			spec := g.slowSpec()
			g.leaveStart(spec, g.crash)
			g.open()
			id := g.submit(action, spec)
			g.swept()
			g.write("go", "")
			g.check(g.result(id), want, map[int]string{828: "start: process is already running"}[want])
			switch action {
			case "start":
				g.one(spec, 2)
			case "restart":
				g.one(spec, 3)
			default:
				g.swept()
				if n := len(g.running()); n != 0 || g.starts() != 2 {
					t.Fatalf("%d processes after %d starts, want none after 2", n, g.starts())
				}
			}
		})
	}
}

func TestStartCommandWhosePidWasNotNotedIsNotRunAgain(t *testing.T) {
	t.Parallel()
	var armed, reached atomic.Bool
	g := newRig(t, func(c *Config) {
		c.Crash = func(point string) {
			if point == CrashAfterSpawn && armed.Load() && reached.CompareAndSwap(false, true) {
				runtime.Goexit()
			}
		}
	})
	spec := g.slowSpec()
	g.write("go", "")
	pid := g.want("start", spec, 0, "").Status.PID
	g.remove("go")
	armed.Store(true)
	sigkill(t, pid)
	g.eventually("it is started again", func() bool { return g.starts() == 2 && reached.Load() })
	g.crash()
	g.open()
	g.swept()
	g.write("go", "")
	g.one(spec, 2)
}

func TestOperationsStartCommandWhosePidWasNotNotedIsWaitedFor(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]struct{ code, running int }{"start": {828, 1}, "stop": {0, 0}, "kill": {0, 0}} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, die(CrashAfterSpawn))
			spec := g.slowSpec()
			first := g.submit("start", spec)
			g.eventually("the command runs", func() bool { return g.starts() == 1 })
			g.crash()
			g.open()
			next := g.submit(action, spec)
			time.Sleep(3 * g.cfg.Timing.Settle) // longer than the start window of first
			g.write("go", "")
			g.check(g.result(first), 0, "")
			g.check(g.result(next), want.code, map[int]string{828: "start: process is already running"}[want.code])
			g.swept()
			if n := len(g.running()); n != want.running || g.starts() != 1 {
				t.Fatalf("%d processes after %d starts, want %d after 1", n, g.starts(), want.running)
			}
		})
	}
}
