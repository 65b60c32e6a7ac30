package boltstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// Begin decides whether a chunk may be delivered, and records its first begin.
func (s *Store) Begin(ctx context.Context, id procfleet.TaskID, chunk, upto int) (taskstore.Begun, error) {
	return update(ctx, s, func(t *tx) (taskstore.Begun, error) {
		b, err := t.begin(id, chunk, upto)
		if errors.Is(err, taskstore.ErrNotFound) {
			return taskstore.Begun{Gate: taskstore.GateGone, Now: t.Now}, nil
		}
		return b, err
	})
}

func (t *tx) begin(id procfleet.TaskID, chunk, upto int) (taskstore.Begun, error) {
	r, err := t.task(id)
	if err != nil {
		return taskstore.Begun{}, err
	}
	ls := t.legs(r)
	l, err := ls.leg(chunk)
	if err != nil {
		return taskstore.Begun{}, err
	}
	from, to, grant := l.part(r, upto)
	b := taskstore.Begun{Gate: t.gate(r, l, l.Marks[from:to]), Now: t.Now}
	if grant != nil && b.Gate == taskstore.GateOpen && !t.Now.Before(grant.Deadline) {
		b.Gate = taskstore.GateOverdue
	}
	if b.Gate != taskstore.GateOpen && b.Gate != taskstore.GateCanceled {
		return b, nil
	}
	begun := &l.Begun
	b.Deadline = r.Deadline
	if grant != nil {
		begun, b.Deadline = &grant.Begun, earlier(r.Deadline, grant.Deadline)
	}
	if begun.IsZero() && b.Gate == taskstore.GateOpen {
		*begun, r.State = t.Now, procfleet.TaskRunning
		if l.Begun.IsZero() {
			l.Begun = t.Now
		}
		ls.dirty[chunk] = true
		if err := ls.save(); err != nil {
			return taskstore.Begun{}, err
		}
	}
	b.Task, b.FirstBegun = taskOf(r), *begun
	b.Open, b.Delivered = pack.OpenItemsFrom(l.Marks[from:to], from)
	if b.Gate == taskstore.GateOpen {
		b.Open, b.Delivered = pack.Remaining(b.Open, l.Cancels), pack.Remaining(b.Delivered, l.Cancels)
	}
	b.Chunk, err = pack.ReadChunk(string(t.Bucket(bucketChunks).Get(partKey(r.Number, chunk))))
	return b, err
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// gate decides on items of a chunk with the given marks.
func (t *tx) gate(r *taskRecord, l *leg, marks []byte) taskstore.Gate {
	switch {
	case r.State == procfleet.TaskRejected:
		return taskstore.GateRejected
	case !r.undone(l), !active(marks):
		return taskstore.GateFinished
	case r.Held():
		return taskstore.GateHeld
	case !t.Now.Before(r.Deadline):
		return taskstore.GateOverdue
	case r.Canceled():
		return taskstore.GateCanceled
	}
	return taskstore.GateOpen
}

// Delivered changes items of a chunk from pending to delivered.
func (s *Store) Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error {
	items = slices.Clone(items)
	return change(ctx, s, func(t *tx) error {
		r, err := t.task(id)
		if err != nil || r.State == procfleet.TaskRejected {
			return err
		}
		ls := t.legs(r)
		l, err := ls.leg(chunk)
		if err != nil {
			return err
		}
		for _, item := range items {
			i := item - l.First
			if i >= 0 && i < len(l.Marks) && pack.Mark(l.Marks[i]) == pack.Pending {
				ls.mark(chunk, i, pack.Delivered)
			}
		}
		l.Done = l.Done || done
		ls.dirty[chunk] = true
		return ls.save()
	})
}

// Record applies results by rank.
func (s *Store) Record(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	batches = bound(batches)
	return update(ctx, s, func(t *tx) ([]taskstore.Recorded, error) {
		out := make([]taskstore.Recorded, len(batches))
		for i, b := range batches {
			var err error
			if out[i], err = t.record(b); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// bound returns a copy of the batches in which every result is within its size limits.
func bound(batches []taskstore.Batch) []taskstore.Batch {
	out := make([]taskstore.Batch, len(batches))
	for i, b := range batches {
		out[i] = taskstore.Batch{Task: b.Task, Results: make([]procfleet.Result, len(b.Results))}
		for j, r := range b.Results {
			out[i].Results[j] = pack.Bound(r)
		}
	}
	return out
}

func (t *tx) record(b taskstore.Batch) (taskstore.Recorded, error) {
	r, err := t.task(b.Task)
	if errors.Is(err, taskstore.ErrNotFound) {
		return taskstore.Recorded{}, nil
	}
	if err != nil || r.State == procfleet.TaskRejected {
		return taskstore.Recorded{Known: err == nil}, err
	}
	out := taskstore.Recorded{Known: true}
	ls := t.legs(r)
	units := ls.units(b.Results)
	for i := range b.Results {
		applied, err := ls.apply(b.Results[i])
		if err != nil {
			return taskstore.Recorded{}, err
		}
		if applied {
			out.Applied++
		}
	}
	if out.Applied == 0 {
		return out, nil
	}
	out.UnitsEnded = t.count(r, units)
	switch {
	case r.Counts.Open() == 0 && r.State != procfleet.TaskFinished:
		t.finish(r)
		out.Completed = true
	case r.State == procfleet.TaskAccepted:
		r.State = procfleet.TaskRunning // a task with a result can no longer be rejected
	}
	return out, ls.save()
}

// finish ends a task without open items; its end is to be notified.
func (t *tx) finish(r *taskRecord) {
	r.State, r.FinishedAt, r.NotifyPending, r.Hold = procfleet.TaskFinished, t.Now, true, procfleet.Hold{}
	if r.Rollout != nil {
		r.Rollout.Hold = procfleet.Hold{}
	}
}

// apply stores a result and marks its item if the result's rank is higher. It reports
// whether it did.
func (ls *legs) apply(result procfleet.Result) (applied bool, err error) {
	if result.Item < 0 || result.Item >= ls.task.Items {
		return false, nil
	}
	chunk, l, err := ls.holding(result.Item)
	if err != nil {
		return false, err
	}
	i := result.Item - l.First
	replaced, late := pack.Mark(l.Marks[i]).ReplacedBy(&result)
	if !replaced {
		return false, nil
	}
	result.Late = late
	ls.mark(chunk, i, pack.MarkOf(&result))
	return true, ls.t.Bucket(bucketResults).Put(partKey(ls.task.Number, result.Item), pack.Result(&result))
}
