package operate

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// reopen starts another engine on the records of a damaged journal.
func (g *rig) reopen(damage *journal.Damage) {
	g.t.Helper()
	engine, err := New(g.cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	left := g.ledger.recovered()
	left.Damage = damage
	engine.Recover(left)
	engine.Resume()
	g.engine = engine
}

func TestDamagedJournalAdoptsAndStartsNothingUntilAskedAgain(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.spec()
	pid := g.want("start", spec, 0, "").Status.PID
	g.crash()
	first := &journal.Damage{ID: "1", Found: true}
	g.reopen(first)
	g.becomes(spec, "what runs is looked after", func(s agentproto.Status) bool {
		return s.Phase == "running" && s.PID == pid && s.Supervised
	})
	left := func(s agentproto.Status) bool {
		return s.Phase == "backoff" && !s.NextRetryAt.IsZero() && time.Now().After(s.NextRetryAt.Add(500*time.Millisecond))
	}
	sigkill(t, pid)
	g.becomes(spec, "its time has come and passed", left)
	g.crash()
	first.Found = false
	g.reopen(first)
	g.becomes(spec, "and again after another restart of the agent", left)
	if n := g.starts(); n != 1 {
		t.Fatalf("%d starts, want the one before the damage", n)
	}
	pid = startByHand(t, g)
	g.becomes(spec, "what somebody else starts is adopted", func(s agentproto.Status) bool {
		return s.Phase == "running" && s.PID == pid
	})

	g.want("supervise", spec, 0, "")
	restarted := func(s agentproto.Status) bool { return s.Phase == "running" && s.Running && s.PID != pid }
	sigkill(t, pid)
	pid = g.becomes(spec, "it is started now that it was asked for", restarted).PID
	g.crash()
	g.reopen(first)
	sigkill(t, pid)
	g.becomes(spec, "also by the next agent process", restarted)
}
