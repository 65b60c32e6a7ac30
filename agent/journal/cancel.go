package journal

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/procfleet/procfleet/agentproto"
)

// Cancellation is a request not to run an operation.
type Cancellation struct {
	ID

	Lane   string
	Action string
	Fence  int64
	Key    string // key of the operation's process
	// Result is the result of the operation if it is dropped or unknown.
	Result agentproto.Result
}

// Decision is the outcome of [Journal.Cancel] for one operation.
type Decision struct {
	Kind   string             // one of the decisions of package agentproto
	Result *agentproto.Result // nil if the operation has begun
}

// Begin marks an open operation as begun, in memory: from then on [Journal.Cancel] does not
// drop it. It returns an error that wraps [ErrFinished] if the operation has a result, for
// example because it was dropped.
func (j *Journal) Begin(id ID) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, err := j.openEntry(id)
	if err == nil {
		e.begun = true
	}
	return err
}

// Cancel decides about operations, and returns when the decisions are durable. An operation
// that has not begun is dropped, and one that was never received is tombstoned: both finish
// with the result of their cancellation, and a later command of them gets that result. After
// an error nothing was decided.
func (j *Journal) Cancel(cancellations []Cancellation) ([]Decision, error) {
	decisions := make([]Decision, len(cancellations))
	err := j.do(&change{urgent: true, stage: func(g *group) error {
		for i := range cancellations {
			var err error
			if decisions[i], err = j.cancel(g, &cancellations[i]); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	for i := range decisions {
		if decisions[i].Kind == agentproto.DecisionOver && decisions[i].Result == nil {
			r, _, _ := j.Result(cancellations[i].ID)
			decisions[i].Result = &r
		}
	}
	return decisions, nil
}

func (j *Journal) cancel(g *group, c *Cancellation) (Decision, error) {
	e, known := j.index.ops[c.ID]
	kind := agentproto.DecisionDropped
	switch {
	case known && e.finished:
		return Decision{Kind: agentproto.DecisionOver}, nil
	case known && (e.begun || e.maybeExecuted || !e.executing.zero()):
		return Decision{Kind: agentproto.DecisionBegun}, nil
	case !known:
		if why := j.index.mayHaveRun(c); why != "" {
			r := c.Result
			r.Code, r.Reason, r.Message = agentproto.CodeFailed, agentproto.ReasonCommandFailed, c.Action+": "+why
			return Decision{Kind: agentproto.DecisionOver, Result: &r}, nil
		}
		kind = agentproto.DecisionTombstoned
	}
	r := c.Result.Bounded()
	body, err := json.Marshal(r)
	if err != nil {
		return Decision{}, fmt.Errorf("encode result: %w", err)
	}
	if known {
		err = j.finish(g, c.ID, &r, body)
	} else {
		err = j.tombstone(g, c, &r, body)
	}
	return Decision{Kind: kind, Result: &r}, err
}

// tombstone adds the result of an operation that was never received.
func (j *Journal) tombstone(g *group, c *Cancellation, r *agentproto.Result, body []byte) error {
	d := &done{
		ID: c.ID, Lane: c.Lane, Action: c.Action, Fence: c.Fence, At: j.now().UTC(),
		Code: r.Code, Reason: r.Reason, Result: body,
	}
	at, err := g.add(&record{Done: d})
	if err != nil {
		return err
	}
	restoreOnFailure(g, j.index.ops, c.ID)
	j.index.finish(d, at)
	g.sync = true
	// Only the reply contains the result of a tombstone: the worker knows whether another
	// instance of the agent may have run the operation.
	if _, err := g.add(&record{Acked: []ID{c.ID}}); err != nil {
		return err
	}
	j.index.ops[c.ID].acked = true
	return nil
}

// mayHaveRun returns the reason why an operation that is not stored may have run; "" = it
// was never received.
func (x *index) mayHaveRun(c *Cancellation) string {
	mark, marked := x.fences[c.Key]
	lost := marked && mark.compare(c.Fence, c.Item) == 0 || !marked && c.Fence <= x.floor || x.damage != nil && c.Fence <= x.damage.Fence
	if c.Action == agentproto.ActionStatus || !lost {
		return ""
	}
	return "outcome unknown, its record is no longer stored: query the status"
}

// ErrFinished means that an operation has a result.
var ErrFinished = errors.New("operation is finished")
