package worker

import (
	"context"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// recorder stores results, for as long as the store is away, and has the end
// of tasks told that they complete.
type recorder struct {
	store    Store
	timing   *Timing
	finished *notifier
	hints    *hints
	metrics  *metrics
}

// record returns what became of each batch.
func (r *recorder) record(ctx context.Context, batches ...taskstore.Batch) (recorded []taskstore.Recorded, err error) {
	attempts := 0
	err = r.timing.untilStored(ctx, func(ctx context.Context) (err error) {
		attempts++
		recorded, err = r.store.Record(ctx, batches)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("record results of %d tasks: %w", len(batches), err)
	}
	applied := 0
	for i := range recorded {
		applied += recorded[i].Applied
		r.metrics.stored(ctx, batches[i].Results)
		r.hints.recorded(batches[i].Task, recorded[i])
		if recorded[i].Completed {
			r.metrics.completed.Add(ctx, 1)
			r.finished.soon(batches[i].Task)
		} else if attempts > 1 && recorded[i].Known {
			// An attempt that was not confirmed, such as one that no replica
			// had in time, may have completed the task all the same.
			r.finished.soon(batches[i].Task)
		}
	}
	r.metrics.recorded.Add(ctx, int64(applied))
	return recorded, nil
}

// recordOf is record for results of one task.
func (r *recorder) recordOf(ctx context.Context, id procfleet.TaskID, results []procfleet.Result) (taskstore.Recorded, error) {
	recorded, err := r.record(ctx, taskstore.Batch{Task: id, Results: results})
	if err != nil {
		return taskstore.Recorded{}, err
	}
	return recorded[0], nil
}
