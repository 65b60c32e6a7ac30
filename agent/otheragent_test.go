package agent

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestTwoAgentsOfOneHostTellOfEachOther(t *testing.T) {
	t.Parallel()
	first, n := newHost(t)
	first.cfg.PresenceInterval = 50 * time.Millisecond
	d := newDiary(t, n)
	first.start(nil)
	second := &host{t: t, conn: n.Conn, cfg: first.cfg}
	second.cfg.Conn, second.cfg.DataDir = testenv.Connect(t, n.URL), t.TempDir()
	second.start(nil)
	said := map[string]any{} // by whom
	for len(said) < 2 {
		e := d.next()
		if e.Kind != agentproto.EventTwoAgents || said[e.Instance] != nil {
			t.Fatalf("told %+v", e)
		}
		said[e.Instance] = e.Details["instance"]
	}
	for instance, other := range said {
		if other == instance || said[other.(string)] != instance {
			t.Errorf("%s tells of %s, which tells of %v", instance, other, said[other.(string)])
		}
	}
}
