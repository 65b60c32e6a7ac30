package boltstore

import (
	"context"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Pause holds an open task.
func (s *Store) Pause(ctx context.Context, id procfleet.TaskID, reason string, seq int) (procfleet.Task, error) {
	return s.control(ctx, id, seq, func(t *tx, r *taskRecord) (changed bool) {
		if r.Held() {
			return false
		}
		r.Hold = procfleet.Hold{Kind: procfleet.HoldOperator, Reason: reason, Since: t.Now}
		return true
	})
}

// Resume ends the hold of a task and moves its deadline.
func (s *Store) Resume(ctx context.Context, id procfleet.TaskID, seq int) (procfleet.Task, error) {
	return s.control(ctx, id, seq, func(t *tx, r *taskRecord) (changed bool) {
		if !r.Held() {
			return false
		}
		r.Deadline = r.Deadline.Add(max(0, t.Now.Sub(r.Hold.Since)))
		if r.Deadline.After(r.ExpiresAt) {
			r.Deadline = r.ExpiresAt
		}
		r.Hold = procfleet.Hold{}
		return true
	})
}

// control applies a transition to an open task. The transition reports whether it changed
// the record.
func (s *Store) control(ctx context.Context, id procfleet.TaskID, seq int, transition func(*tx, *taskRecord) bool) (task procfleet.Task, err error) {
	var refused error
	task, err = update(ctx, s, func(t *tx) (procfleet.Task, error) {
		r, err := t.task(id)
		if err != nil {
			return procfleet.Task{}, err
		}
		before := taskOf(r)
		switch {
		case r.State.Done():
			refused = taskstore.ErrDone
			return before, nil
		case !transition(t, r):
			return before, nil
		case seq != taskstore.AnySeq && seq != before.Seq:
			refused = taskstore.ErrSeq
			return before, nil
		}
		r.Seq++
		return taskOf(r), t.putTask(r)
	})
	if err == nil {
		err = refused
	}
	return task, err
}
