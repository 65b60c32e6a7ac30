package operate

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agentproto"
)

// faulty is a ledger that panics for one process.
type faulty struct {
	*ledger
	key string
}

func (l faulty) SaveProcess(key string, record json.RawMessage) error {
	if key == l.key {
		panic("a fault of the agent")
	}
	return l.ledger.SaveProcess(key, record)
}

func testProcessThatTheAgentFailsAtIsLeftAlone(t *testing.T) {
	t.Parallel()
	var emitted eventLog
	g := newRig(t, func(c *Config) {
		c.Emit = emitted.add
		c.Ledger = faulty{c.Ledger.(*ledger), "faulty"}
	})
	specs := g.specs(2)
	specs[0].Key = "faulty"
	pids := g.startAll(specs)
	var refused agentproto.Result
	g.eventually("it is refused", func() bool {
		refused = g.do("reload", func() agentproto.Spec { s := specs[0]; s.ReloadCmd = "true"; return s }())
		return refused.Code == agentproto.CodeAgentAbnormal
	})
	g.check(refused, agentproto.CodeAgentAbnormal, "reload: the agent failed at this process repeatedly")
	if e := emitted.of(agentproto.EventQuarantined); len(e) != 1 || e[0].Key != "faulty" {
		t.Fatalf("emitted %+v", e)
	}
	if s := g.status(specs[0]); !s.Running || s.PID != pids[0] {
		t.Fatalf("status is %+v, want pid %d as before", s, pids[0])
	}
	sigkill(t, pids[1])
	g.becomes(specs[1], "the other one is looked after", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != pids[1] })
	g.want("stop", specs[1], 0, "")
}

func TestFaultInAStatusIsItsResultAndEndsNothingElse(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	finder := g.engine.host.Finder
	g.engine.host.Finder = nil // makes every search panic
	spec := g.spec()
	g.want("status", spec, agentproto.CodeAgentAbnormal, "status: internal error: ")
	old := journal.Op{
		ID: journal.ID{Task: "T", Item: 1}, Action: "stop", Spec: spec, AcceptedAt: time.Now(), ReceivedAt: time.Now(),
		NotAfter: time.Now().Add(-time.Hour),
	}
	g.engine.reject(t.Context(), old, procop.Expired(&old))
	if r := g.result(old.ID); r.Code != agentproto.CodeFailed || r.Status != nil {
		t.Fatalf("result is %+v", r)
	}
	g.engine.host.Finder = finder
	if s := g.status(spec); s.Running {
		t.Fatalf("status is %+v", s)
	}
}
