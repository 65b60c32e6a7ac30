package operate

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agentproto"
)

// cyclic returns a rig with a short Timing.Settle.
func cyclic(t *testing.T, emitted *eventLog) *rig {
	t.Helper()
	return newRig(t, func(c *Config) { c.Timing.Settle, c.Emit = 300*time.Millisecond, emitted.add })
}

// job returns the spec of a periodic process with the given cycle and run time.
func (g *rig) job(cycle time.Duration, life string) agentproto.Spec {
	return g.spec(func(s *agentproto.Spec) {
		s.Type, s.CycleTimeMS, s.StartCmd = procspec.Periodic, cycle.Milliseconds(), daemon("-pid demo.pid -life "+life)
		s.StartCheckBeginMS, s.StartCheckEndMS = 0, 0
	})
}

func TestPeriodicProcessIsRunInItsCycle(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := cyclic(t, &emitted)
	spec := g.job(300*time.Millisecond, "2m")
	s := g.want("supervise", spec, 0, "").Status
	if !s.Supervised || s.Running || s.Phase != "stopped" || g.starts() != 0 {
		t.Fatalf("status is %+v after %d starts", s, g.starts())
	}
	ended := 0
	*s = g.becomes(spec, "it waits, and was run again and again", func(s agentproto.Status) bool {
		if s.Phase == "running" && s.PID != ended { // end the run only once it was reported as running: an earlier end is a failure
			sigkill(t, s.PID)
			ended = s.PID
		}
		return s.Phase == "stopped" && g.starts() >= 4
	})
	if !s.Supervised || s.PID != 0 || s.Failures != 0 || s.Restarts != 0 || s.NextRunAt.IsZero() || s.LastStartedAt.IsZero() {
		t.Fatalf("status is %+v", s)
	}
	g.do("stop", spec)
	s = g.want("stop", spec, agentproto.CodeNotRunning, "").Status
	if s.Supervised || !s.NextRunAt.IsZero() {
		t.Fatalf("status after the stop is %+v", s)
	}
	for _, kind := range []string{agentproto.EventRestarted, agentproto.EventAdopted, agentproto.EventGaveUp, agentproto.EventRunsFailed} {
		if events := emitted.of(kind); len(events) > 0 {
			t.Fatalf("emitted %+v", events)
		}
	}
}

func TestRunsThatTakeLongerThanTheCycleAreLeftOut(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := cyclic(t, &emitted)
	spec := g.job(200*time.Millisecond, "2m")
	spec.StartCheckBeginMS, spec.StartCheckEndMS = patience.Milliseconds()/24, patience.Milliseconds()/24
	pid := g.want("start", spec, 0, "").Status.PID
	g.eventually("it is emitted", func() bool { return len(emitted.of(agentproto.EventOverlap)) > 0 })
	if s := g.status(spec); s.PID != pid || g.starts() != 1 || !s.Supervised {
		t.Fatalf("pid %d after %d starts, want %d still", s.PID, g.starts(), pid)
	}
	sigkill(t, pid)
	g.eventually("it is run again", func() bool { return g.starts() > 1 })
	g.do("stop", spec)
}

func TestCommandThatTakesLongerThanTheCycleIsNotRunTwice(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := cyclic(t, &emitted)
	spec := g.job(200*time.Millisecond, "")
	spec.StartCmd = "echo >>starts; while [ ! -e go ]; do sleep 0.05; done"
	spec.OpTimeoutMS = patience.Milliseconds()
	g.want("supervise", spec, 0, "")
	g.eventually("it is emitted", func() bool { return len(emitted.of(agentproto.EventOverlap)) > 0 })
	if g.starts() != 1 {
		t.Fatalf("%d starts", g.starts())
	}
	g.write("go", "")
	g.eventually("it is run again", func() bool { return g.starts() > 1 })
	g.do("stop", spec)
}

func TestFailedRunsAreToldAndTriedAtTheNextTickOnly(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := cyclic(t, &emitted)
	spec := g.job(200*time.Millisecond, "")
	spec.StartCmd, spec.StartRetries = "echo >>starts; [ -e fixed ] || { echo no disk; exit 3; }", 2
	g.want("supervise", spec, 0, "")
	g.eventually("it goes on being run", func() bool { return g.starts() > 4 })
	events := emitted.of(agentproto.EventRunsFailed)
	if len(events) != 1 || events[0].Message != "2 runs in a row failed: command failed; exit=3; output tail: no disk\n" {
		t.Fatalf("emitted %+v", events)
	}
	g.becomes(spec, "failures count", func(s agentproto.Status) bool { return s.Failures > 2 && s.Phase != "fatal" && s.Supervised })
	g.write("fixed", "")
	g.becomes(spec, "they are forgotten", func(s agentproto.Status) bool { return s.Failures == 0 })
	g.do("stop", spec)
}

// rewind moves the stored schedule of the process into the past.
func (g *rig) rewind(key string, by time.Duration) {
	g.t.Helper()
	g.amend(key, func(r *record) {
		r.Rhythm.Anchor, r.Rhythm.Served = r.Rhythm.Anchor.Add(-by), r.Rhythm.Served.Add(-by)
	})
}

// supervisedAgo supervises a process, crashes the agent and starts it again as if ago had
// passed since.
func (g *rig) supervisedAgo(spec agentproto.Spec, ago time.Duration) {
	g.t.Helper()
	g.want("supervise", spec, 0, "")
	g.crash()
	g.rewind(spec.Key, ago)
	g.open()
}

func TestScheduleSurvivesTheAgent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		away    time.Duration // downtime of the agent; the cycle of an hour has just begun
		starts  int
		atLeast time.Duration // least time until the next run
		atMost  time.Duration
	}{
		{"half a cycle", 30 * time.Minute, 0, 25 * time.Minute, 31 * time.Minute},
		{"a tick was missed just now", 62 * time.Minute, 1, 53 * time.Minute, 59 * time.Minute},
		{"a tick was missed long ago", 80 * time.Minute, 0, 35 * time.Minute, 41 * time.Minute},
		{"five ticks were missed", 302 * time.Minute, 1, 53 * time.Minute, 59 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var emitted eventLog
			g := cyclic(t, &emitted)
			spec := g.job(time.Hour, "100ms")
			g.supervisedAgo(spec, c.away)
			for range 2 {
				s := g.becomes(spec, "it is settled", func(s agentproto.Status) bool { return s.Phase == "stopped" && g.starts() == c.starts })
				next := time.Until(s.NextRunAt)
				if !s.Supervised || next < c.atLeast || next > c.atMost {
					t.Fatalf("the next run is in %s, want %s to %s: %+v", next, c.atLeast, c.atMost, s)
				}
				g.crash()
				g.open()
			}
			g.do("stop", spec)
		})
	}
}

func TestCycleThatAnAgentWithAClockAheadBeganGoesOn(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := cyclic(t, &emitted)
	spec := g.job(time.Hour, "100ms")
	g.supervisedAgo(spec, -1000*time.Hour)
	s := g.becomes(spec, "it is settled", func(s agentproto.Status) bool { return s.Phase == "stopped" })
	if next := time.Until(s.NextRunAt); !s.Supervised || next > 61*time.Minute {
		t.Fatalf("the next run is in %s: %+v", next, s)
	}
	g.do("stop", spec)
}

func TestScheduleThatStaysKeepsItsRhythm(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := cyclic(t, &emitted)
	spec := g.job(time.Hour, "100ms")
	g.supervisedAgo(spec, 30*time.Minute)
	soon := func(s *agentproto.Status) bool { return time.Until(s.NextRunAt) < 35*time.Minute }
	if s := g.want("supervise", spec, 0, "").Status; !soon(s) {
		t.Fatalf("registered again, the next run is at %s", s.NextRunAt)
	}
	if s := g.want("start", spec, 0, "").Status; !soon(s) || g.starts() != 1 {
		t.Fatalf("after %d starts the next run is at %s", g.starts(), s.NextRunAt)
	}
	spec.CycleTimeMS *= 2
	if s := g.want("supervise", spec, 0, "").Status; soon(s) || time.Until(s.NextRunAt) < 110*time.Minute {
		t.Fatalf("with a cycle of 2 h the next run is at %s", s.NextRunAt)
	}
	g.want("release", spec, 0, "")
	if s := g.status(spec); !s.NextRunAt.IsZero() || s.Supervised {
		t.Fatalf("released, its status is %+v", s)
	}
}

func TestCrontabIsFollowed(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := cyclic(t, &emitted)
	spec := g.job(0, "100ms")
	spec.Crontab = "* * * * *"
	s := g.want("supervise", spec, 0, "").Status
	if next := time.Until(s.NextRunAt); next > time.Minute || s.NextRunAt.Truncate(time.Minute).Sub(s.NextRunAt).Abs() > time.Second {
		t.Fatalf("the next run is at %s", s.NextRunAt)
	}
	spec.Crontab = "0 0 1 1 *"
	s = g.want("supervise", spec, 0, "").Status
	if at := s.NextRunAt.Local().Add(time.Second); at.YearDay() != 1 || at.Hour() != 0 {
		t.Fatalf("the next run is at %s", at)
	}
	spec.Crontab = "61 * * * *"
	g.want("supervise", spec, agentproto.CodeFailed, `register: bad spec: alive.crontab (crontab_rule) "61 * * * *"`)
	g.want("stop", spec, agentproto.CodeNotRunning, "")
}
