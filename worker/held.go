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
	every time.Duration

	mu   sync.Mutex
	msgs map[jetstream.Msg]struct{}
}

func newHeld(ackWait time.Duration) *held {
	return &held{every: ackWait / 3, msgs: map[jetstream.Msg]struct{}{}}
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
	ticker := time.NewTicker(h.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
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
