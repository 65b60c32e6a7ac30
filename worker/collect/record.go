package collect

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/notify"
	"github.com/procfleet/procfleet/worker/storecall"
)

// Recorder stores results and requests notifications for the tasks that they complete.
// It is safe for concurrent use.
type Recorder struct {
	Hints *Hints

	store    Store
	calls    storecall.Policy
	notifier *notify.Notifier
	rollouts Rollouts
	metrics  *metrics.Metrics

	mu sync.Mutex
	// dirty has the tasks whose last Record call failed. Such a call may have completed
	// the task nevertheless, for example if no replica confirmed it in time, and its
	// retry does not report the completion again. So the task is notified after the
	// retry. The sweep finds completed tasks that are missing here, but later.
	dirty map[procfleet.TaskID]bool
}

const maxDirty = 10_000

// Rollouts advances rollouts whose units have ended.
type Rollouts interface{ Soon(id procfleet.TaskID) }

// NewRecorder returns a recorder.
func NewRecorder(store Store, calls storecall.Policy, notifier *notify.Notifier, rollouts Rollouts, hints *Hints, m *metrics.Metrics) *Recorder {
	return &Recorder{Hints: hints, store: store, calls: calls, notifier: notifier, rollouts: rollouts, metrics: m, dirty: map[procfleet.TaskID]bool{}}
}

// Record stores results of one task and retries while the store is unavailable.
func (r *Recorder) Record(ctx context.Context, id procfleet.TaskID, results []procfleet.Result) (taskstore.Recorded, error) {
	var recorded []taskstore.Recorded
	err := r.calls.Retry(ctx, func(ctx context.Context) (err error) {
		recorded, err = r.Attempt(ctx, []taskstore.Batch{{Task: id, Results: results}})
		return err
	})
	if err != nil {
		return taskstore.Recorded{}, err
	}
	return recorded[0], nil
}

// Attempt stores batches of results without retries. It returns one entry per batch.
func (r *Recorder) Attempt(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	recorded, err := r.store.Record(ctx, batches)
	if err != nil {
		r.markDirty(batches)
		return nil, fmt.Errorf("record results of %d tasks: %w", len(batches), err)
	}
	applied := 0
	for i := range batches {
		task := batches[i].Task
		applied += recorded[i].Applied
		r.metrics.Results(ctx, batches[i].Results)
		r.Hints.recorded(task, recorded[i])
		if recorded[i].UnitsEnded && !recorded[i].Completed {
			r.rollouts.Soon(task)
		}
		if recorded[i].Completed {
			r.metrics.Completed.Add(ctx, 1)
		}
		if r.wasDirty(task) && recorded[i].Known || recorded[i].Completed {
			r.notifier.Soon(task)
		}
	}
	r.metrics.Recorded.Add(ctx, int64(applied))
	return recorded, nil
}

func (r *Recorder) markDirty(batches []taskstore.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range batches {
		if len(r.dirty) < maxDirty {
			r.dirty[batches[i].Task] = true
		}
	}
}

// wasDirty clears the mark of a task and reports whether the task was marked.
func (r *Recorder) wasDirty(task procfleet.TaskID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.dirty[task]
	delete(r.dirty, task)
	return was
}

// hintEvery is how long changes of a task are combined into one hint.
const hintEvery = 100 * time.Millisecond

// Hints publishes to watchers that tasks have changed: completion at once, other
// changes combined. A short task costs one message, a long task at most ten per second.
// Hints may be lost, so watchers also query the store.
type Hints struct {
	send func(id procfleet.TaskID, over bool) error

	mu        sync.Mutex
	changed   map[procfleet.TaskID]struct{}
	scheduled bool // a timer will call Flush
}

// NewHints returns a Hints that publishes with send.
func NewHints(send func(procfleet.TaskID, bool) error) *Hints {
	return &Hints{send: send, changed: make(map[procfleet.TaskID]struct{})}
}

func (h *Hints) recorded(id procfleet.TaskID, r taskstore.Recorded) {
	switch {
	case r.Completed:
		h.over(id)
	case r.Applied > 0:
		h.Change(id)
	}
}

// Change schedules a hint for an open task.
func (h *Hints) Change(id procfleet.TaskID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.scheduled {
		h.scheduled = true
		time.AfterFunc(hintEvery, h.Flush)
	}
	h.changed[id] = struct{}{}
}

// over publishes the completion of a task and discards its pending hint.
func (h *Hints) over(id procfleet.TaskID) {
	h.mu.Lock()
	delete(h.changed, id)
	h.mu.Unlock()
	_ = h.send(id, true) // an error is ignored, because watchers also query the store
}

// Flush publishes the scheduled hints. Call it when no changes follow.
func (h *Hints) Flush() {
	h.mu.Lock()
	changed := h.changed
	h.changed, h.scheduled = make(map[procfleet.TaskID]struct{}), false
	h.mu.Unlock()
	for id := range changed {
		_ = h.send(id, false) // ignored as in over
	}
}
