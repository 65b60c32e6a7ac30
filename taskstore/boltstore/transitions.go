package boltstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// note stores a transition of now, and counts it in Seq.
func (t *tx) note(r *taskRecord, n procfleet.Transition) {
	r.Seq++
	n.At, n.Seq = t.Now, r.Seq
	r.Noted = append(r.Noted, n)
	r.Transitions = len(r.Noted)
}

// Transitions returns some transitions of a task.
func (s *Store) Transitions(ctx context.Context, id procfleet.TaskID, after, upto int) ([]procfleet.Transition, error) {
	return view(ctx, s, func(t *tx) ([]procfleet.Transition, error) {
		r, err := t.task(id)
		if err == nil && upto > len(r.Noted) {
			err = fmt.Errorf("transition %d of task %s: %w", upto, id, taskstore.ErrNotFound)
		}
		if err != nil || after >= upto {
			return nil, err
		}
		return slices.Clone(r.Noted[after:upto]), nil
	})
}

// TransitionsSent records that the first upto transitions are published.
func (s *Store) TransitionsSent(ctx context.Context, id procfleet.TaskID, upto int) error {
	_, err := update(ctx, s, func(t *tx) (struct{}, error) {
		r, err := t.task(id)
		if err != nil || upto <= r.TransitionsSent {
			return struct{}{}, err
		}
		r.TransitionsSent = upto
		return struct{}{}, t.putTask(r)
	})
	return err
}
