package operate

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// TestWithTheJournal runs an engine and its successor on the same journal on disk: the second
// must understand the records of the first.
func TestWithTheJournal(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.crash()
	dir := t.TempDir()
	open := func() *journal.Journal {
		j, left, err := journal.Open(dir, g.cfg.Log)
		if err != nil {
			t.Fatal(err)
		}
		g.cfg.Ledger = j
		if g.engine, err = New(g.cfg); err != nil {
			t.Fatal(err)
		}
		g.engine.Recover(left)
		g.engine.Resume()
		return j
	}
	operate := func(j *journal.Journal, task, action string, fence int64) agentproto.Result {
		op := journal.Op{
			ID: journal.ID{Task: task}, Lane: "s", Fence: fence, Action: action, Spec: g.spec(), AcceptedAt: time.Now().UTC(), ReceivedAt: time.Now().UTC(),
		}
		verdicts, err := j.Receive([]journal.Op{op})
		if err != nil || verdicts[0].Known || verdicts[0].Refused != nil {
			t.Fatalf("receive: %+v %v", verdicts, err)
		}
		g.engine.Submit(op)
		return g.result(op.ID)
	}

	j := open()
	pid := g.check(operate(j, "a", "start", 1), 0, "").Status.PID
	g.crash()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	j = open()
	s := g.becomesBy("it is adopted", func() *agentproto.Status { return operate(j, time.Now().String(), "status", 0).Status },
		func(s *agentproto.Status) bool { return s.Phase == "running" })
	if s.PID != pid || !s.Supervised || s.RegisteredAt.IsZero() || g.starts() != 1 {
		t.Fatalf("status is %+v", s)
	}
	g.check(operate(j, "b", "stop", 2), 0, "")
	g.crash()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	j = open()
	if g.engine.Supervised() != 0 {
		t.Fatal("a stopped process is still supervised after the agent's restart")
	}
	g.crash()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func (g *rig) becomesBy(what string, look func() *agentproto.Status, is func(*agentproto.Status) bool) *agentproto.Status {
	g.t.Helper()
	var last *agentproto.Status
	g.eventually(what, func() bool {
		last = look()
		return last != nil && is(last)
	})
	return last
}
