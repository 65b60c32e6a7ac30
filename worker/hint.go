package worker

import (
	"context"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// hintEvery is how long changes of open tasks are gathered before they are
// hinted at.
const hintEvery = 100 * time.Millisecond

// hints tells whoever watches a task that it changed: its end at once, other
// changes gathered, so that a short task costs one message and a long one at
// most ten a second. Hints may be lost; watchers look for themselves too.
type hints struct {
	send func(id procfleet.TaskID, over bool) error

	begun chan struct{} // something was added to changed, which was empty
	mu    sync.Mutex
	// changed has the tasks to hint at next.
	changed map[procfleet.TaskID]struct{}
}

func newHints(send func(procfleet.TaskID, bool) error) *hints {
	return &hints{send: send, begun: make(chan struct{}, 1), changed: make(map[procfleet.TaskID]struct{})}
}

// recorded hints at what a batch of results changed.
func (h *hints) recorded(id procfleet.TaskID, r taskstore.Recorded) {
	switch {
	case r.Completed:
		h.over(id)
	case r.Applied > 0:
		h.change(id)
	}
}

// change has an open task hinted at soon.
func (h *hints) change(id procfleet.TaskID) {
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

// over hints at the end of a task, which leaves nothing else to hint at.
func (h *hints) over(id procfleet.TaskID) {
	h.mu.Lock()
	delete(h.changed, id)
	h.mu.Unlock()
	_ = h.send(id, true) // lost while the bus is away: watchers look for themselves
}

// run hints at changes until ctx ends, and then at the last ones.
func (h *hints) run(ctx context.Context) {
	defer h.flush()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.begun:
		}
		if pause(ctx, hintEvery) != nil {
			return
		}
		h.flush()
	}
}

func (h *hints) flush() {
	h.mu.Lock()
	changed := h.changed
	h.changed = make(map[procfleet.TaskID]struct{})
	h.mu.Unlock()
	for id := range changed {
		_ = h.send(id, false) // as in over
	}
}
