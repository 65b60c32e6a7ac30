package operate

import (
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

func TestTwoMastersAreToldAndLeftAlone(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Emit, c.Timing.ConflictWait = emitted.add, 300*time.Millisecond })
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS = 60_000 })
	old := g.want("start", spec, 0, "").Status.PID
	other := startByHand(t, g)
	e := g.emitted(&emitted, agentproto.EventTwoMasters)
	if e.PID != old || e.Details["pid_other"] != other {
		t.Fatalf("event is %+v, want pid %d beside %d", e, old, other)
	}
	if s := g.status(spec); s.PID != old || len(g.running()) != 2 {
		t.Fatalf("status is %+v with %d processes", s, len(g.running()))
	}
	sigkill(t, old)
	if e := g.emitted(&emitted, agentproto.EventPIDChanged); e.PID != other || e.Details["pid_before"] != old {
		t.Fatalf("event is %+v, want pid %d after %d", e, other, old)
	}
	if s := g.status(spec); s.PID != other || s.Failures != 0 || g.starts() != 1 {
		t.Fatalf("status is %+v after %d starts", s, g.starts())
	}
	if n := len(emitted.of(agentproto.EventTwoMasters)); n != 1 {
		t.Fatalf("emitted %d times that there are two", n)
	}
}

func TestProcessThatReplacesItselfIsFollowed(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Emit, c.Timing.ConflictWait = emitted.add, time.Hour })
	spec := g.spec(func(s *agentproto.Spec) { s.StartCmd = started("-heir heir") })
	old := g.want("start", spec, 0, "").Status.PID
	g.write("heir", "")
	s := g.becomes(spec, "its child takes over", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != old })
	if e := g.emitted(&emitted, agentproto.EventPIDChanged); e.PID != s.PID || e.Details["pid_before"] != old {
		t.Fatalf("event is %+v, want pid %d after %d", e, s.PID, old)
	}
	if s.Failures != 0 || g.starts() != 1 || len(g.running()) != 2 {
		t.Fatalf("status is %+v after %d starts with %d processes", s, g.starts(), len(g.running()))
	}
}

func TestSuspendedProcessIsToldAndLeftAlone(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Emit = emitted.add })
	spec := g.spec()
	pid := g.want("start", spec, 0, "").Status.PID
	id, err := proc.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Signal(id, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if e := g.emitted(&emitted, agentproto.EventFrozen); e.PID != pid {
		t.Fatalf("event is %+v, want pid %d", e, pid)
	}
	g.swept()
	if s := g.status(spec); s.Phase != "running" || s.PID != pid || s.Stat != "T" || g.starts() != 1 {
		t.Fatalf("status is %+v after %d starts", s, g.starts())
	}
	if n := len(emitted.of(agentproto.EventFrozen)); n != 1 {
		t.Fatalf("emitted %d times", n)
	}
	if err := proc.Signal(id, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	g.want("stop", spec, 0, "")
}

func TestWhatSomebodyElseStartedIsTold(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) { c.Emit = emitted.add })
	spec := g.spec(func(s *agentproto.Spec) { s.StartIntervalMS, s.StartRetries = 60_000, 0 })
	sigkill(t, g.want("start", spec, 0, "").Status.PID)
	g.becomes(spec, "it is given up", func(s agentproto.Status) bool { return s.Phase == "fatal" })
	pid := startByHand(t, g)
	if e := g.emitted(&emitted, agentproto.EventAdopted); e.PID != pid {
		t.Fatalf("event is %+v, want pid %d", e, pid)
	}
	if s := g.status(spec); s.Phase != "running" || s.Restarts != 0 {
		t.Fatalf("status is %+v", s)
	}
}
