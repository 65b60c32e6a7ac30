package operate

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// deadline is a server clock on which all deadlines pass when passed is set.
type deadline struct{ passed atomic.Bool }

func (d *deadline) use(c *Config) { c.InTime = func(time.Time) bool { return !d.passed.Load() } }

// submitDue submits an operation with a deadline and returns its ID.
func (g *rig) submitDue(action string, spec agentproto.Spec) journal.ID {
	op := g.due(action, spec)
	g.ledger.receive(op)
	g.engine.Submit(op)
	return op.ID
}

func (g *rig) due(action string, spec agentproto.Spec) journal.Op {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next++
	return journal.Op{
		ID: journal.ID{Task: "GSETASK:1:due", Item: g.next}, Lane: "s", Fence: int64(g.next), Action: action, Spec: spec,
		AcceptedAt: time.Now().UTC(), ReceivedAt: time.Now().UTC(), NotAfter: time.Now().Add(time.Hour).UTC(),
	}
}

// held returns a start command that waits for the file "go" (see letGo) before it runs line.
func held(line string) string { return "while [ ! -e go ]; do sleep 0.02; done; " + line }

func (g *rig) letGo() {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "go"), nil, 0o600); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) awaitCommand(id journal.ID) {
	g.t.Helper()
	g.eventually("the command runs", func() bool {
		g.ledger.mu.Lock()
		defer g.ledger.mu.Unlock()
		return g.ledger.execs[id].PID != 0
	})
}

// TestOperationWhoseDeadlinePassedInTheQueueIsNotExecuted: a start hangs, and a stop waits for
// it beyond the deadline, so that its task was already reported as timed out.
func TestOperationWhoseDeadlinePassedInTheQueueIsNotExecuted(t *testing.T) {
	t.Parallel()
	var d deadline
	g := newRig(t, d.use)
	start := g.submitDue("start", g.spec(func(s *agentproto.Spec) { s.StartCmd = held(started("")) }))
	g.awaitCommand(start)
	stop := g.submitDue("stop", g.spec())
	d.passed.Store(true)
	g.letGo()
	g.check(g.result(start), 0, "success") // the start had begun in time
	r := g.check(g.result(stop), agentproto.CodeFailed, "stop: expired, not executed: ")
	if r.Reason != agentproto.ReasonRefused || !r.Status.Running || !r.Status.Supervised || len(g.running()) != 1 {
		t.Fatalf("%s, status %+v, running %v", r.Reason, r.Status, g.running())
	}
	g.want("stop", g.spec(), 0, "") // this stop has no deadline
}

// TestStartWhoseDeadlinePassedBeforeItsCommandHadRoomIsNotExecuted: the command of another
// process holds the only slot.
func TestStartWhoseDeadlinePassedBeforeItsCommandHadRoomIsNotExecuted(t *testing.T) {
	t.Parallel()
	var d deadline
	g := newRig(t, d.use, func(c *Config) { c.CommandLimit = 1 })
	first := g.submitDue("start", g.spec(func(s *agentproto.Spec) { s.StartCmd = held(started("")) }))
	g.awaitCommand(first)
	other := g.spec(func(s *agentproto.Spec) {
		s.Key, s.SetupPath = "other", t.TempDir()
		s.PidPath, s.StartCmd = filepath.Join(s.SetupPath, "demo.pid"), "echo >>starts"
	})
	second := g.submitDue("start", other)
	d.passed.Store(true)
	g.letGo()
	g.check(g.result(first), 0, "success")
	g.check(g.result(second), agentproto.CodeFailed, "start: expired, not executed: ")
	if _, err := os.Stat(filepath.Join(other.SetupPath, "starts")); !os.IsNotExist(err) {
		t.Fatalf("the command was run: %v", err)
	}
}

// TestRestartThatBeganInTimeIsNotLeftHalfDone: a restart that has stopped the process must
// start it again even after the deadline.
func TestRestartThatBeganInTimeIsNotLeftHalfDone(t *testing.T) {
	t.Parallel()
	var d deadline
	g := newRig(t, d.use)
	pid := g.want("start", g.spec(func(s *agentproto.Spec) { s.StartCmd = started("-linger 200ms") }), 0, "").Status.PID
	restart := g.submitDue("restart", g.spec())
	g.eventually("the restart acts", func() bool {
		g.ledger.mu.Lock()
		defer g.ledger.mu.Unlock()
		return len(g.ledger.execs[restart].Before) > 0
	})
	d.passed.Store(true)
	if r := g.check(g.result(restart), 0, "success"); r.Status.PID == pid {
		t.Fatalf("pid is still %d", pid)
	}
}

func TestRecoveredOperationWhoseDeadlinePassedIsNotExecuted(t *testing.T) {
	t.Parallel()
	var d deadline
	g := newRig(t, d.use)
	g.crash()
	start, status := g.due("start", g.spec()), g.due("status", g.spec())
	g.ledger.receive(start)
	g.ledger.receive(status)
	d.passed.Store(true)
	g.open()
	for _, op := range []journal.Op{start, status} {
		r := g.check(g.result(op.ID), agentproto.CodeFailed, op.Action+": expired, not executed: ")
		if r.Status.Running || !strings.Contains(r.Message, op.NotAfter.Format(time.RFC3339Nano)) {
			t.Fatalf("%+v", r)
		}
	}
	if g.starts() != 0 {
		t.Fatal("it was executed")
	}
}
