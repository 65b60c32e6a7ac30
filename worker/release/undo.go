package release

import (
	"context"
	"errors"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/undo"
	"github.com/procfleet/procfleet/taskstore"
)

// UndoFailed creates the task that reverts an ended rollout, if its policy requires that, and
// begins it. It may be repeated. It returns an error only if a repeat may succeed.
func (r *Releaser) UndoFailed(ctx context.Context, task *procfleet.Task) error {
	p := task.Rollout
	if p == nil || p.Plan.OnFailure != procfleet.OnFailureUndo || p.Failures == procfleet.AnyFailures || p.Failed <= p.Failures || task.UndoneBy != "" {
		return nil
	}
	err := r.undo(ctx, task)
	if err == nil || ctx.Err() != nil || errors.Is(err, taskstore.ErrUnavailable) {
		return err
	}
	r.cfg.Log.WithError(err).WithField("task", task.ID).Error("rollout not undone")
	return nil
}

func (r *Releaser) undo(ctx context.Context, task *procfleet.Task) error {
	u, err := undo.Make(ctx, r.cfg.Store, task, task.Rollout.Plan.UndoAll)
	if err != nil {
		return err
	}
	made, _, err := r.cfg.Store.Create(ctx, u.Draft)
	if err != nil {
		return fmt.Errorf("store the undo: %w", err)
	}
	r.cfg.Reached(PointUndoStored)
	if err := u.Unregister(ctx, r.cfg.Registrar, task); err != nil {
		return err
	}
	if _, err := r.cfg.Store.LinkUndo(ctx, task.ID, made.ID); err != nil {
		return fmt.Errorf("link undo %s: %w", made.ID, err)
	}
	r.cfg.Log.WithField("task", task.ID).WithField("undo", made.ID).Info("rollout undone")
	if err := r.begin(ctx, &made); err != nil {
		r.cfg.Log.WithError(err).WithField("task", made.ID).Warn("rollout not advanced, left to the sweep")
	}
	return nil
}

// begin does for a new task what its dispatcher does: it records and queues it.
func (r *Releaser) begin(ctx context.Context, task *procfleet.Task) error {
	if task.Dispatched {
		return nil
	}
	if err := r.cfg.Audit.Require(ctx, audit.OfTask(audit.Accepted, task)); err != nil {
		return err
	}
	if err := r.advance(ctx, task.ID); err != nil {
		return err
	}
	return r.cfg.Store.Dispatched(ctx, task.ID, nil)
}
