package operate

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

// whenLogged is a hook that is called on every error that is logged.
type whenLogged func()

func (h whenLogged) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }
func (h whenLogged) Fire(*logrus.Entry) error {
	h()
	return nil
}

// amend changes the stored record of a process.
func (g *rig) amend(key string, change func(*record)) {
	g.t.Helper()
	g.ledger.mu.Lock()
	defer g.ledger.mu.Unlock()
	var rec record
	if err := json.Unmarshal(g.ledger.processes[key], &rec); err != nil {
		g.t.Fatal(err)
	}
	change(&rec)
	text, err := json.Marshal(rec)
	if err != nil {
		g.t.Fatal(err)
	}
	g.ledger.processes[key] = text
}

// A run that becomes due while the engine still recovers other processes must not begin while
// the start command of the earlier agent runs.
func TestNothingIsStartedBeforeTheOperationsOfTheEarlierAgentAreKnown(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	spec := g.job(time.Hour, "")
	spec.StartCmd, spec.OpTimeoutMS = g.slowSpec().StartCmd, patience.Milliseconds()
	g.want("supervise", spec, 0, "")
	id := g.submit("start", spec)
	g.eventually("its command runs", func() bool { return g.starts() == 1 })
	g.crash()
	g.amend(spec.Key, func(r *record) {
		r.Spec.CycleTimeMS = 100
		r.Rhythm.Anchor = r.Rhythm.Anchor.Add(-time.Hour)
	})
	for n := range 8 { // unreadable records, which prolong the recovery
		g.ledger.processes[fmt.Sprint("torn ", n)] = json.RawMessage(`"torn"`)
	}
	log, ok := g.cfg.Log.(*logrus.Logger)
	if !ok {
		t.Fatalf("log is a %T", g.cfg.Log)
	}
	log.AddHook(whenLogged(func() {
		for end := time.Now().Add(200 * time.Millisecond); g.starts() == 1 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	}))
	g.open()
	g.write("go", "")
	g.check(g.result(id), 0, "")
	g.one(spec, 1)
}
