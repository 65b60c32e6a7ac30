package worker

import (
	"context"
	"fmt"
	"sync"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// recorder stores results and has the end of tasks that they complete notified.
type recorder struct {
	store    Store
	timing   *Timing
	finished *notifier
	hints    *hints
	metrics  *metrics

	mu sync.Mutex
	// unsure are tasks of calls that failed. Such a call, for example one that
	// no replica confirmed in time, may have completed the task all the same, and
	// its repeat does not say so. Only a head start on the sweep: the tasks of
	// other workers, and those beyond the bound, are left to it.
	unsure map[procfleet.TaskID]bool
}

const maxUnsure = 10_000

// record stores results, for as long as the store is unavailable, and returns
// what became of each batch.
func (r *recorder) record(ctx context.Context, batches ...taskstore.Batch) (recorded []taskstore.Recorded, err error) {
	err = r.timing.untilStored(ctx, func(ctx context.Context) (err error) {
		recorded, err = r.attempt(ctx, batches)
		return err
	})
	return recorded, err
}

// attempt is record without a repeat.
func (r *recorder) attempt(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	recorded, err := r.store.Record(ctx, batches)
	if err != nil {
		r.doubt(batches)
		return nil, fmt.Errorf("record results of %d tasks: %w", len(batches), err)
	}
	applied := 0
	for i := range recorded {
		task := batches[i].Task
		applied += recorded[i].Applied
		r.metrics.stored(ctx, batches[i].Results)
		r.hints.recorded(task, recorded[i])
		if recorded[i].Completed {
			r.metrics.completed.Add(ctx, 1)
		}
		if r.doubted(task) && recorded[i].Known || recorded[i].Completed {
			r.finished.soon(task)
		}
	}
	r.metrics.recorded.Add(ctx, int64(applied))
	return recorded, nil
}

func (r *recorder) doubt(batches []taskstore.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unsure == nil {
		r.unsure = make(map[procfleet.TaskID]bool)
	}
	for i := range batches {
		if len(r.unsure) < maxUnsure {
			r.unsure[batches[i].Task] = true
		}
	}
}

// doubted reports once whether a call for the task had failed.
func (r *recorder) doubted(task procfleet.TaskID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.unsure[task]
	delete(r.unsure, task)
	return was
}

// recordOf is record for results of one task.
func (r *recorder) recordOf(ctx context.Context, id procfleet.TaskID, results []procfleet.Result) (taskstore.Recorded, error) {
	recorded, err := r.record(ctx, taskstore.Batch{Task: id, Results: results})
	if err != nil {
		return taskstore.Recorded{}, err
	}
	return recorded[0], nil
}
