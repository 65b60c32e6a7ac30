package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// readTasks reads tasks: the zero Task for an id without a task. A task that
// cannot be read must not delay the others, so it is read last, alone, and has
// nothing but its ID.
func readTasks(ctx context.Context, store Store, log logrus.FieldLogger, ids []procfleet.TaskID) ([]procfleet.Task, error) {
	tasks, err := store.TasksByID(ctx, ids)
	if err == nil {
		return tasks, nil
	}
	if storeAway(err) || ctx.Err() != nil {
		return nil, fmt.Errorf("read %d tasks: %w", len(ids), err)
	}
	tasks = make([]procfleet.Task, len(ids))
	for i, id := range ids {
		task, err := store.Task(ctx, id)
		switch {
		case err == nil:
			tasks[i] = task
		case errors.Is(err, taskstore.ErrNotFound):
		case storeAway(err) || ctx.Err() != nil:
			return nil, fmt.Errorf("read task %s: %w", id, err)
		default:
			tasks[i].ID = id
			log.WithError(err).WithField("task", id).Error("task unreadable, visit postponed")
		}
	}
	return tasks, nil
}
