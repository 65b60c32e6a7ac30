package operate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// TestRandomLife applies operations, kills, agent crashes and freezes to a process in random order,
// and checks that there are never two processes.
func TestRandomLife(t *testing.T) {
	t.Parallel()
	for range 2 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			l := life{rig: newRig(t), random: rand.New(rand.NewPCG(seed, 0))}
			l.cfg.Timing.FlapWindow = time.Millisecond
			l.spec = l.rig.spec(func(s *agentproto.Spec) {
				s.StartCmd = "echo >>starts; sleep 0.1; setsid ./demo -late 20ms -pid demo.pid >/dev/null 2>&1 </dev/null &"
				s.StartCheckBeginMS, s.StartCheckEndMS, s.StartIntervalMS, s.StartRetries = 50, 100, 10, 1_000_000
			})
			for range 20 {
				l.step()
			}
			l.settles()
		})
	}
}

type life struct {
	*rig
	random *rand.Rand
	spec   agentproto.Spec
	last   string // latest action
	ids    []journal.ID
}

func (l *life) step() {
	switch l.random.IntN(8) {
	case 0, 1:
		for _, pid := range l.running() {
			if id, err := proc.Identify(pid); err == nil {
				_ = proc.Signal(id, 9)
			}
		}
	case 2:
		l.crash()
		l.open()
	case 3:
		l.engine.Apply(frozen("", time.Now().Add(time.Hour)))
	case 4:
		l.engine.Apply(agentproto.Settings{})
	default:
		l.last = []string{"start", "start", "stop", "restart", "kill"}[l.random.IntN(5)]
		l.ids = append(l.ids, l.submit(l.last, l.spec))
	}
	for end := time.Now().Add(time.Duration(l.random.IntN(400)) * time.Millisecond); ; {
		if pids := l.running(); len(pids) > 1 {
			l.t.Fatalf("pids %v at the same time", pids)
		}
		if time.Now().After(end) {
			return
		}
	}
}

// reached reports whether an operation reached its goal.
func (l *life) reached(id journal.ID) bool {
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	switch l.ledger.results[id].Code {
	case agentproto.CodeSuccess, agentproto.CodeAlreadyRunning, agentproto.CodeNotRunning:
		return true
	}
	l.t.Logf("the last %s ended with %+v", l.last, l.ledger.results[id])
	return false
}

// settles waits for all results and checks the effect of the last operation.
func (l *life) settles() {
	l.engine.Apply(agentproto.Settings{})
	for _, id := range l.ids {
		l.eventually(fmt.Sprintf("%v is over", id), func() bool {
			l.ledger.mu.Lock()
			defer l.ledger.mu.Unlock()
			return l.ledger.finishes[id] > 0
		})
	}
	if len(l.ids) == 0 || !l.reached(l.ids[len(l.ids)-1]) {
		return // the last operation reported its failure
	}
	want := 0
	if l.last == "start" || l.last == "restart" {
		want = 1
	}
	l.eventually(fmt.Sprintf("%d processes after a last %s", want, l.last), func() bool {
		pids := l.running()
		if len(pids) > 1 {
			l.t.Fatalf("pids %v at the same time", pids)
		}
		last := l.status(l.spec)
		return len(pids) == want && last.Running == (want == 1)
	})
	for id, n := range l.ledger.finishes {
		if n != 1 {
			l.t.Errorf("%v ended %d times", id, n)
		}
	}
}
