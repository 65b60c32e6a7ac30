package boltstore

import (
	"context"
	"errors"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// Pause holds an open task.
func (s *Store) Pause(ctx context.Context, id procfleet.TaskID, reason string, seq int) (procfleet.Task, error) {
	held := func(_ *tx, r *taskRecord) (bool, error) { return r.Held(), nil }
	return s.control(ctx, id, seq, held, func(t *tx, r *taskRecord) error {
		r.Hold = procfleet.Hold{Kind: procfleet.HoldOperator, Reason: reason, Since: t.Now}
		t.note(r, procfleet.Transition{Kind: procfleet.TransitionHeld, Hold: procfleet.HoldOperator, Reason: reason})
		return nil
	})
}

// Resume ends the hold of a task and moves its deadline.
func (s *Store) Resume(ctx context.Context, id procfleet.TaskID, seq int) (procfleet.Task, error) {
	resumed := func(_ *tx, r *taskRecord) (bool, error) { return !r.Held(), nil }
	return s.control(ctx, id, seq, resumed, func(t *tx, r *taskRecord) error {
		held := t.Now.Sub(r.Hold.Since)
		t.endHold(r)
		t.note(r, procfleet.Transition{Kind: procfleet.TransitionResumed, Hold: procfleet.HoldOperator})
		return t.moveGrants(r, held)
	})
}

func (t *tx) endHold(r *taskRecord) {
	if !r.Held() {
		return
	}
	r.Deadline = r.Deadline.Add(max(0, t.Now.Sub(r.Hold.Since)))
	if r.Deadline.After(r.ExpiresAt) {
		r.Deadline = r.ExpiresAt
	}
	r.Hold = procfleet.Hold{}
}

// Cancel cancels a task and ends the items of the chunks that were never begun.
func (s *Store) Cancel(ctx context.Context, id procfleet.TaskID, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	canceled := func(_ *tx, r *taskRecord) (bool, error) {
		return r.Canceled() && (mode == procfleet.CancelDrain || r.Cancel.Mode == procfleet.CancelInterrupt), nil
	}
	return s.control(ctx, id, seq, canceled, func(t *tx, r *taskRecord) error {
		since := t.Now
		if r.Canceled() {
			since = r.Cancel.Since
		}
		t.endHold(r)
		r.Cancel = procfleet.Cancel{Mode: mode, Reason: reason, Since: since}
		t.note(r, procfleet.Transition{Kind: procfleet.TransitionCancelled, Mode: mode, Reason: reason})
		return t.cancelItems(r)
	})
}

// cancelItems ends the items of chunks that were never begun. The other chunks must be
// published again.
func (t *tx) cancelItems(r *taskRecord) error {
	ls := t.legs(r)
	all, err := ls.all()
	if err != nil {
		return err
	}
	if r.Rollout != nil {
		r.Rollout.Hold = procfleet.Hold{}
	}
	for chunk, l := range all {
		l.Cancels, l.Done = nil, false
		ls.dirty[chunk] = true
		from := len(l.released(r))
		if r.Rollout == nil && l.Begun.IsZero() {
			from = 0
		}
		for i := from; i < len(l.Marks); i++ {
			if pack.Mark(l.Marks[i]) == pack.Pending {
				ls.mark(chunk, i, pack.Cancelled)
			}
		}
		ls.cancelWaiting(chunk, l)
	}
	r.State, r.ItemCancels = procfleet.TaskRunning, 0
	if r.Counts.Open() == 0 {
		t.finish(r)
	}
	return ls.save()
}

// control applies a transition to an open task, unless the task is done with it already.
// transition notes it.
func (s *Store) control(ctx context.Context, id procfleet.TaskID, seq int, already func(*tx, *taskRecord) (bool, error), transition func(*tx, *taskRecord) error) (task procfleet.Task, err error) {
	var refused error
	task, err = update(ctx, s, func(t *tx) (procfleet.Task, error) {
		r, err := t.task(id)
		if err != nil {
			return procfleet.Task{}, err
		}
		if r.State.Done() {
			refused = taskstore.ErrDone
			return taskOf(r), nil
		}
		switch done, err := already(t, r); {
		case err != nil:
			return procfleet.Task{}, err
		case done:
			return taskOf(r), nil
		case seq != taskstore.AnySeq && seq != r.Seq:
			refused = taskstore.ErrSeq
			return taskOf(r), nil
		}
		switch err := transition(t, r); {
		case errors.Is(err, taskstore.ErrFailures):
			refused = err
			return taskOf(r), nil
		case err != nil:
			return procfleet.Task{}, err
		}
		return taskOf(r), t.putTask(r)
	})
	if err == nil {
		err = refused
	}
	return task, err
}

// Retried adds a retry to a task.
func (s *Store) Retried(ctx context.Context, id, retry procfleet.TaskID) (procfleet.Task, error) {
	return update(ctx, s, func(t *tx) (procfleet.Task, error) {
		r, err := t.task(id)
		if err != nil || slices.Contains(r.RetriedBy, retry) {
			return taskOf(r), err
		}
		r.RetriedBy = append(r.RetriedBy, retry)
		r.Seq++
		return taskOf(r), t.putTask(r)
	})
}

// LinkUndo sets the task that reverts a task, unless it is set.
func (s *Store) LinkUndo(ctx context.Context, id, undo procfleet.TaskID) (procfleet.Task, error) {
	return update(ctx, s, func(t *tx) (procfleet.Task, error) {
		r, err := t.task(id)
		if err != nil || r.UndoneBy != "" {
			return taskOf(r), err
		}
		r.UndoneBy = undo
		r.Seq++
		return taskOf(r), t.putTask(r)
	})
}
