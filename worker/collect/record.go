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

// Recorder stores results and has the end of tasks that they complete notified. It
// is safe for concurrent use.
type Recorder struct {
	Hints *Hints

	store    Store
	calls    storecall.Policy
	notifier *notify.Notifier
	metrics  *metrics.Metrics

	mu sync.Mutex
	// dirty marks tasks of calls that failed. Such a call, for example one that no
	// replica confirmed in time, may have completed the task all the same, and its
	// retry does not report that. The mark is only a head start on the sweep, which
	// finds the tasks of other workers, and those beyond the bound.
	dirty map[procfleet.TaskID]bool
}

const maxDirty = 10_000

// NewRecorder returns a recorder. Its hints are sent by [Hints.Run].
func NewRecorder(store Store, calls storecall.Policy, notifier *notify.Notifier, hints *Hints, m *metrics.Metrics) *Recorder {
	return &Recorder{Hints: hints, store: store, calls: calls, notifier: notifier, metrics: m, dirty: map[procfleet.TaskID]bool{}}
}

// Record stores results of one task. It retries while the store is unavailable.
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

// Attempt stores batches of results in one call, without a retry. It returns one
// entry for each batch.
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

// wasDirty removes the mark of a task and reports whether it had one.
func (r *Recorder) wasDirty(task procfleet.TaskID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.dirty[task]
	delete(r.dirty, task)
	return was
}

// hintEvery is how long changes of open tasks are gathered before hints are sent.
const hintEvery = 100 * time.Millisecond

// Hints publishes that tasks changed, for the watchers of tasks: the end at once,
// other changes gathered, so that a short task costs one message and a long one at
// most ten a second. Hints may be lost; watchers query the store too.
type Hints struct {
	send func(id procfleet.TaskID, over bool) error

	begun   chan struct{} // a task was added to changed, which was empty
	mu      sync.Mutex
	changed map[procfleet.TaskID]struct{}
}

// NewHints returns hints that are published with send.
func NewHints(send func(procfleet.TaskID, bool) error) *Hints {
	return &Hints{send: send, begun: make(chan struct{}, 1), changed: make(map[procfleet.TaskID]struct{})}
}

// recorded publishes what a batch of results changed.
func (h *Hints) recorded(id procfleet.TaskID, r taskstore.Recorded) {
	switch {
	case r.Completed:
		h.over(id)
	case r.Applied > 0:
		h.Change(id)
	}
}

// Change has a hint of an open task sent soon.
func (h *Hints) Change(id procfleet.TaskID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.changed) == 0 {
		select {
		case h.begun <- struct{}{}:
		default:
		}
	}
	h.changed[id] = struct{}{}
}

// over publishes the end of a task, after which no other hint is needed.
func (h *Hints) over(id procfleet.TaskID) {
	h.mu.Lock()
	delete(h.changed, id)
	h.mu.Unlock()
	_ = h.send(id, true) // lost while the broker is unavailable: watchers query the store
}

// Run publishes changes until ctx ends, and then the last ones.
func (h *Hints) Run(ctx context.Context) {
	defer h.flush()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.begun:
		}
		if storecall.Pause(ctx, hintEvery) != nil {
			return
		}
		h.flush()
	}
}

func (h *Hints) flush() {
	h.mu.Lock()
	changed := h.changed
	h.changed = make(map[procfleet.TaskID]struct{})
	h.mu.Unlock()
	for id := range changed {
		_ = h.send(id, false) // as in over
	}
}
