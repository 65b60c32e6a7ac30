package operate

import (
	"encoding/json"
	"maps"
	"sync"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// ledger is an in-memory journal that outlives its engine.
type ledger struct {
	mu        sync.Mutex
	order     []journal.ID
	ops       map[journal.ID]journal.Op
	execs     map[journal.ID]journal.Exec
	results   map[journal.ID]agentproto.Result
	finishes  map[journal.ID]int
	processes map[string]json.RawMessage
	broken    error         // error of every change; nil = none
	failed    int           // number of failed changes
	held      chan struct{} // blocks saves of the process heldKey until it is closed; nil = not blocked
	heldKey   string
	waits     bool // a save is blocked
}

func newLedger() *ledger {
	return &ledger{
		ops: map[journal.ID]journal.Op{}, execs: map[journal.ID]journal.Exec{},
		results: map[journal.ID]agentproto.Result{}, finishes: map[journal.ID]int{},
		processes: map[string]json.RawMessage{},
	}
}

func (l *ledger) receive(op journal.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops[op.ID] = op
	l.order = append(l.order, op.ID)
}

func (l *ledger) setBroken(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = err
}

func (l *ledger) Begin(id journal.ID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, finished := l.results[id]; finished {
		return journal.ErrFinished
	}
	return nil
}

// executing reports whether an operation has acted.
func (l *ledger) executing(id journal.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.execs[id]
	return ok
}

func (l *ledger) Execute(id journal.ID, e journal.Exec) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		l.failed++
		return l.broken
	}
	l.execs[id] = e
	return nil
}

func (l *ledger) Finish(id journal.ID, r agentproto.Result) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		l.failed++
		return l.broken
	}
	l.results[id] = r
	l.finishes[id]++
	return nil
}

// holdSaves blocks the actor of a process at its next save, until release is called.
func (l *ledger) holdSaves(key string) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make(chan struct{})
	l.held, l.heldKey = held, key
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held = nil
		close(held)
	})
}

func (l *ledger) saveIsHeld() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waits
}

// waitForSaves blocks while the saves of the key are held.
func (l *ledger) waitForSaves(key string) {
	l.mu.Lock()
	held := l.held
	if key != l.heldKey {
		held = nil
	}
	l.waits = held != nil
	l.mu.Unlock()
	if held != nil {
		<-held
	}
}

func (l *ledger) SaveProcess(key string, record json.RawMessage) error {
	l.waitForSaves(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		return l.broken
	}
	if record == nil {
		delete(l.processes, key)
	} else {
		l.processes[key] = record
	}
	return nil
}

// recovered returns the records for the next agent process.
func (l *ledger) recovered() journal.Recovered {
	l.mu.Lock()
	defer l.mu.Unlock()
	rec := journal.Recovered{Processes: maps.Clone(l.processes)}
	for _, id := range l.order {
		if _, over := l.results[id]; over {
			continue
		}
		exec, executing := l.execs[id]
		rec.Open = append(rec.Open, journal.OpenOp{Op: l.ops[id], Executing: executing, Exec: exec})
	}
	return rec
}
