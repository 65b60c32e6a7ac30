package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/procfleet/procfleet/agentproto"
)

// Receive stores new operations and returns the admission of each operation. New operations
// are durable when it returns. An operation that is already stored is a repeat. Any other
// operation that changes the host is refused unless its fence and item are above the fences
// and items of all operations received for its process.
//
// While the disk fails, operations that change the host are refused with code 117, and
// status operations are accepted in memory. After an error no operation was accepted.
func (j *Journal) Receive(ops []Op) ([]Admission, error) {
	admissions := make([]Admission, len(ops))
	admit := func(add func(op *Op) (refused *agentproto.Result)) {
		for i := range ops {
			if admissions[i] = j.check(&ops[i]); admissions[i] == (Admission{}) {
				admissions[i].Refused = add(&ops[i])
			}
		}
	}
	err := j.do(&change{
		stage: func(g *group) error {
			admit(func(op *Op) *agentproto.Result { return j.receive(g, op) })
			return nil
		},
		withoutDisk: func(cause error) error {
			admit(func(op *Op) *agentproto.Result {
				if op.mutating() {
					return refusal(op, agentproto.CodeAgentAbnormal, cause.Error())
				}
				j.index.receive(op, ref{})
				return nil
			})
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	j.attachResults(ops, admissions)
	return admissions, nil
}

// receive adds a new operation to the group. It returns a refusal if the operation cannot be
// encoded, else nil.
func (j *Journal) receive(g *group, op *Op) *agentproto.Result {
	at, err := g.add(&record{Received: op})
	if err != nil {
		return refusal(op, agentproto.CodeFailed, err.Error())
	}
	restoreOnFailure(g, j.index.ops, op.ID)
	restoreOnFailure(g, j.index.fences, op.Spec.Key)
	j.index.receive(op, at)
	g.sync = true
	return nil
}

// check returns the admission of an operation; zero for a new operation.
func (j *Journal) check(op *Op) Admission {
	if e, ok := j.index.ops[op.ID]; ok {
		return checkRepeat(op, e)
	}
	if !op.mutating() {
		return Admission{} // a repeated status changes nothing
	}
	if why := j.index.staleReason(op); why != "" {
		return Admission{Refused: refusal(op, agentproto.CodeFailed, why)}
	}
	return Admission{}
}

// checkRepeat returns the admission of a stored operation, which is never executed again.
func checkRepeat(op *Op, e *entry) Admission {
	if e.differs(op) {
		return Admission{Refused: refusal(op, agentproto.CodeFailed,
			fmt.Sprintf("operation id reused: it belongs to %s with fence %d", e.action, e.fence))}
	}
	return Admission{Known: true}
}

// attachResults adds the results of finished repeats.
func (j *Journal) attachResults(ops []Op, admissions []Admission) {
	for i := range admissions {
		if !admissions[i].Known {
			continue
		}
		if r, open, known := j.Result(ops[i].ID); known && !open {
			admissions[i].Result = &r
		}
	}
}

func refusal(op *Op, code int, why string) *agentproto.Result {
	r := &agentproto.Result{
		Item: op.Item, Code: code, Reason: agentproto.ReasonRefused,
		Message: op.Action + ": " + why, AcceptedAt: op.AcceptedAt, FinishedAt: op.AcceptedAt,
	}
	if why == superseded {
		r.Refusal = agentproto.RefusalSuperseded
	}
	return r
}

// Execute records that the command of an operation is about to be spawned (PID 0) or was
// spawned. The record before the spawn is durable when Execute returns; after an error the
// command must not be spawned. The record with the PID is written without an fsync: it
// survives a crash of the agent, and a crash of the host ends the command anyway.
func (j *Journal) Execute(id ID, e Exec) error {
	return j.do(&change{urgent: e.PID != 0, stage: func(g *group) error {
		entry, err := j.openEntry(id)
		if err != nil {
			return err
		}
		at, err := g.add(&record{Executing: &execMark{ID: id, Exec: e}})
		if err != nil {
			return err
		}
		was := entry.executing
		entry.executing = at
		g.sync = g.sync || e.PID == 0
		g.onFailure(func() { entry.executing = was })
		return nil
	}})
}

// Finish records the result of an operation, truncated to the bounds of a result. The
// result is durable when Finish returns and may be published only then. A second result of
// an operation is ignored without an error.
func (j *Journal) Finish(id ID, r agentproto.Result) error {
	r = r.Bounded()
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	return j.do(&change{
		urgent: true,
		stage:  func(g *group) error { return j.finish(g, id, &r, body) },
		withoutDisk: func(cause error) error {
			e, ok := j.index.ops[id]
			if !ok || e.finished || !e.received.zero() {
				return cause
			}
			e.finished, e.volatile, e.finishedAt = true, &r, j.now()
			return nil
		},
	})
}

func (j *Journal) finish(g *group, id ID, r *agentproto.Result, body []byte) error {
	e, err := j.openEntry(id)
	if errors.Is(err, ErrFinished) {
		return nil
	}
	if err != nil {
		return err
	}
	d := &done{
		ID: id, Lane: e.lane, Trace: e.trace, Action: e.action, Fence: e.fence, At: j.now().UTC(),
		Code: r.Code, Reason: r.Reason, Result: body,
	}
	at, err := g.add(&record{Done: d})
	if err != nil {
		return err
	}
	was := *e
	j.index.finish(d, at)
	g.sync = true
	g.onFailure(func() { *e = was })
	return nil
}

func (j *Journal) openEntry(id ID) (*entry, error) {
	e, ok := j.index.ops[id]
	switch {
	case !ok:
		return nil, fmt.Errorf("operation %s/%d was never received", id.Task, id.Item)
	case e.finished:
		return nil, fmt.Errorf("%w: %s/%d", ErrFinished, id.Task, id.Item)
	}
	return e, nil
}

// Acknowledge records that the servers have stored the results of ids. It does not call
// fsync: after the loss of a record a result is only sent again.
func (j *Journal) Acknowledge(ids []ID) error {
	return j.do(&change{stage: func(g *group) error {
		acked := make([]ID, 0, len(ids))
		for _, id := range ids {
			e, ok := j.index.ops[id]
			if !ok || !e.finished || e.acked {
				continue
			}
			if e.volatile != nil {
				delete(j.index.ops, id) // a repeated status operation is executed again
				continue
			}
			e.acked = true
			g.onFailure(func() { e.acked = false })
			acked = append(acked, id)
		}
		if len(acked) == 0 {
			return nil
		}
		_, err := g.add(&record{Acked: acked})
		return err
	}, withoutDisk: func(cause error) error {
		for _, id := range ids {
			if e, ok := j.index.ops[id]; ok && e.volatile != nil {
				delete(j.index.ops, id)
			}
		}
		return cause
	}})
}

// SaveProcess stores the engine's record of a process; it is durable when SaveProcess
// returns. An empty state or JSON null removes the record.
func (j *Journal) SaveProcess(key string, state json.RawMessage) error {
	if bytes.Equal(state, []byte("null")) {
		state = nil
	}
	return j.do(&change{urgent: true, stage: func(g *group) error {
		if _, known := j.index.processes[key]; !known && len(state) == 0 {
			return nil
		}
		at, err := g.add(&record{Process: &process{Key: key, State: state}})
		if err != nil {
			return err
		}
		restoreOnFailure(g, j.index.processes, key)
		if len(state) == 0 {
			delete(j.index.processes, key)
		} else {
			j.index.processes[key] = at
		}
		g.sync = true
		return nil
	}})
}
