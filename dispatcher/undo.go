package dispatcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/undo"
	"github.com/procfleet/procfleet/taskstore"
)

// undoTask cancels a rollout, if it is open, and creates the task that reverts it. All attempts find
// the same task: if the dispatcher dies before it has linked the tasks, a repeated request does.
func (e *exchange) undoTask(ctx context.Context, q *dialect.TaskControl, task *procfleet.Task) (procfleet.Task, error) {
	switch {
	case q.IfSeq != nil && *q.IfSeq != task.Seq:
		return *task, taskstore.ErrSeq
	case task.Rollout == nil:
		return *task, conflict(q, "the task has no rollout: the specs that its hosts had before are unknown")
	case task.UndoneBy != "":
		return e.api.store.Task(ctx, task.UndoneBy)
	}
	u, err := e.makeUndo(ctx, q, task)
	if err != nil {
		return *task, err
	}
	if !task.State.Done() && !task.Canceled() {
		stop := dialect.TaskControl{Task: q.Task, Transition: dialect.CancelTask, Mode: procfleet.CancelDrain, Reason: q.Reason, IfSeq: q.IfSeq}
		if canceled, err := e.cancelTask(ctx, &stop); err != nil && !errors.Is(err, taskstore.ErrDone) {
			return canceled, err
		}
		if u, err = e.makeUndo(ctx, q, task); err != nil { // hosts may have been released since
			return *task, err
		}
	}
	u.Draft.Origin = e.origin()
	made, err := e.api.submitter.accept(ctx, drafted{Draft: u.Draft})
	if err != nil {
		return *task, err
	}
	e.api.cfg.Reached(PointUndone)
	if err := u.Unregister(ctx, e.api.store, task); err != nil {
		return *task, err
	}
	if _, err := e.api.store.LinkUndo(ctx, task.ID, made.ID); err != nil {
		return *task, fmt.Errorf("link undo %s: %w", made.ID, err)
	}
	return made, nil
}

func (e *exchange) makeUndo(ctx context.Context, q *dialect.TaskControl, task *procfleet.Task) (undo.Undo, error) {
	u, err := undo.Make(ctx, e.api.store, task, q.Speed == procfleet.UndoAll)
	if errors.Is(err, undo.ErrNothing) || errors.Is(err, undo.ErrTooMany) {
		err = conflict(q, "it cannot be undone: %v", err)
	}
	return u, err
}
