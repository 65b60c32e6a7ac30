package operate

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// slowDisk is a ledger whose writes take half a second.
type slowDisk struct{ *ledger }

func fsync() { <-time.After(500 * time.Millisecond) }

func (l slowDisk) Execute(id journal.ID, e journal.Exec) error {
	fsync()
	return l.ledger.Execute(id, e)
}

func (l slowDisk) Finish(id journal.ID, r agentproto.Result) error {
	fsync()
	return l.ledger.Finish(id, r)
}

func (l slowDisk) SaveProcess(key string, record json.RawMessage) error {
	fsync()
	return l.ledger.SaveProcess(key, record)
}

// testSlowDiskSlowsOperationsOnly: supervision continues and statuses are answered while
// records are being written.
func testSlowDiskSlowsOperationsOnly(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.Ledger = slowDisk{c.Ledger.(*ledger)} })
	specs := g.specs(3)
	pids := g.startAll(specs)
	restart := g.submit("restart", specs[0])
	for i, pid := range pids[1:] {
		sigkill(t, pid)
		g.becomes(specs[i+1], "it is started again", func(s agentproto.Status) bool { return s.Phase == "running" && s.PID != pid })
	}
	g.check(g.result(restart), 0, "")
	g.want("stop", specs[1], 0, "")
}
