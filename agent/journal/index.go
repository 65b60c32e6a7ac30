package journal

import (
	"errors"
	"fmt"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// index holds the content of the journal in memory, with references to the records in the
// files.
type index struct {
	ops       map[ID]*entry
	fences    map[string]fenceMark
	processes map[string]ref
	accepted  uint64 // number of accepted operations; source of entry.order
	newest    int64  // highest fence received; ages are relative to it
	floor     int64  // highest removed fence
	damage    *damage
}

// entry is one operation.
type entry struct {
	order  uint64 // position in the order of acceptance
	action string // "" if the record of the receipt is lost
	fence  int64
	lane   string
	trace  string

	received      ref  // record of the receipt; zero for a status operation in memory only
	executing     ref  // latest record of Journal.Execute; zero before the first
	begun         bool // see Journal.Begin
	maybeExecuted bool // may have executed although executing is zero, because the journal was damaged
	finished      bool
	// Fields of a finished operation:
	done       ref
	finishedAt time.Time
	code       int
	reason     string
	acked      bool
	// volatile is a result that is not on disk: the result of a status operation that could
	// not be written, or of a lost operation.
	volatile *agentproto.Result
	lost     bool // all records are lost except the record of its begin
}

func newIndex() index {
	return index{ops: map[ID]*entry{}, fences: map[string]fenceMark{}, processes: map[string]ref{}}
}

// differs reports whether op has the id of this entry but is another operation.
func (e *entry) differs(op *Op) bool {
	return e.action != "" && (e.action != op.Action || e.fence != op.Fence)
}

func (e *entry) mutating() bool { return e.action != agentproto.ActionStatus }

const superseded = "superseded by a later command for this process"

// staleReason returns the reason to refuse an operation that changes the host and is not
// stored; "" = the operation is new. An operation whose fence is not above the last fence
// of its process was received before or is superseded.
func (x *index) staleReason(op *Op) string {
	mark, marked := x.fences[op.Spec.Key]
	switch {
	case marked && mark.compare(op.Fence, op.Item) > 0:
		return superseded
	case marked && mark.compare(op.Fence, op.Item) == 0:
		return "received before, its result is no longer stored"
	case !marked && op.Fence <= x.floor:
		return "older than the commands in this agent's journal, it may have been executed before: submit it again"
	case x.damage != nil && op.Fence <= x.damage.Fence:
		return "journal was damaged: an operation as old as this one may have been executed before, submit it again"
	}
	return ""
}

func (x *index) receive(op *Op, at ref) {
	x.accepted++
	x.ops[op.ID] = &entry{
		order: x.accepted, action: op.Action, fence: op.Fence, lane: op.Lane, trace: op.Trace, received: at,
	}
	x.newest = max(x.newest, op.Fence)
	if op.mutating() {
		x.fences[op.Spec.Key] = fenceMark{Key: op.Spec.Key, Fence: op.Fence, Item: op.Item}
	}
}

func (x *index) finish(d *done, at ref) {
	e, ok := x.ops[d.ID]
	if !ok {
		x.accepted++
		e = &entry{order: x.accepted}
		x.ops[d.ID] = e
	}
	e.action, e.fence, e.lane, e.trace = d.Action, d.Fence, d.Lane, d.Trace
	x.newest = max(x.newest, d.Fence)
	e.received, e.executing = ref{}, ref{}
	e.finished, e.done, e.finishedAt, e.code, e.reason = true, at, d.At, d.Code, d.Reason
}

// apply updates the index with rec, a record at the position at of a file.
func (x *index) apply(rec *record, at ref) error {
	switch {
	case rec.End != nil:
	case rec.Head != nil:
		x.floor, x.newest = max(x.floor, rec.Head.Floor), max(x.newest, rec.Head.Floor)
		if rec.Head.Damage != nil {
			x.damage = rec.Head.Damage
		}
	case rec.Received != nil:
		x.receive(rec.Received, at)
	case rec.Executing != nil:
		if e, ok := x.ops[rec.Executing.ID]; ok && !e.finished {
			e.executing = at
		}
	case rec.Done != nil:
		x.finish(rec.Done, at)
	case rec.Acked != nil:
		for _, id := range rec.Acked {
			if e, ok := x.ops[id]; ok {
				e.acked = true
			}
		}
	case rec.Process != nil:
		if rec.Process.State == nil {
			delete(x.processes, rec.Process.Key)
		} else {
			x.processes[rec.Process.Key] = at
		}
	case rec.Fence != nil:
		x.fences[rec.Fence.Key] = *rec.Fence
		x.newest = max(x.newest, rec.Fence.Fence)
	default:
		return fmt.Errorf("%w: no known content", errBadRecord)
	}
	return nil
}

// outline returns the known part of a result whose record cannot be read.
func (e *entry) outline(id ID, cause error) agentproto.Result {
	r := agentproto.Result{Item: id.Item, Code: e.code, Reason: e.reason, FinishedAt: e.finishedAt}
	if cause == nil {
		cause = errors.New("record has no result")
	}
	note := fmt.Sprintf("details lost: %v", cause)
	if e.code == agentproto.CodeSuccess {
		r.Message, r.Warnings = "success", []string{note}
	} else {
		r.Message = note
	}
	return r
}
