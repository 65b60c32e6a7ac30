package worker

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// held is the set of messages that this worker is at work on. It tells the
// server about all of them in time, so that none is given to another worker.
type held struct {
	hurry chan struct{} // every became shorter

	mu    sync.Mutex
	every time.Duration // between signs; zero until a consumer is known
	msgs  map[jetstream.Msg]struct{}
}

func newHeld() *held {
	return &held{hurry: make(chan struct{}, 1), msgs: map[jetstream.Msg]struct{}{}}
}

// within learns how long a consumer lets a message be without a sign; three
// are given in that time.
func (h *held) within(ackWait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	every := ackWait / 3
	if every <= 0 || h.every > 0 && h.every <= every {
		return
	}
	h.every = every
	select {
	case h.hurry <- struct{}{}:
	default:
	}
}

func (h *held) interval() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.every
}

func (h *held) add(msgs ...jetstream.Msg) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range msgs {
		h.msgs[m] = struct{}{}
	}
}

func (h *held) remove(msgs ...jetstream.Msg) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range msgs {
		delete(h.msgs, m)
	}
}

// run gives the signs of progress until ctx ends.
func (h *held) run(ctx context.Context) {
	ticker := time.NewTicker(time.Hour) // there is nothing to hold before the first consumer
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.hurry:
			ticker.Reset(h.interval())
		case <-ticker.C:
			h.progress()
		}
	}
}

func (h *held) progress() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := range h.msgs {
		// Only publishes into the connection's buffer. A lost sign costs a
		// second delivery, which Begin and the agents' journals absorb.
		_ = m.InProgress()
	}
}
