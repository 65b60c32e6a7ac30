package agent

import (
	"context"
	"math/rand/v2"
	"time"
)

// Limits of the pause after a request without a usable reply.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// backOff decides when the next request may be sent. Its methods are for the
// goroutine that sends, except end, which is safe for concurrent use.
type backOff struct {
	failures  int           // in a row
	until     time.Time     // no request is sent before
	asked     bool          // a worker asked for this pause
	reachable chan struct{} // holds a token when a pause after a failure should end
}

func newBackOff() *backOff { return &backOff{reachable: make(chan struct{}, 1)} }

// end ends a pause after a failure, because the connection is back. A pause
// that a worker asked for goes on: a new connection does not make it less busy.
func (b *backOff) end() { signal(b.reachable) }

// failed begins a pause, longer after each failure, with half of it random so
// that the agents of a fleet do not return together.
func (b *backOff) failed() {
	delay := min(firstRetry<<min(b.failures, 10), lastRetry)
	b.failures++
	b.until, b.asked = time.Now().Add(delay/2+rand.N(delay/2)), false
}

// busy begins the pause that a worker asked for. Workers randomize it.
func (b *backOff) busy(pause time.Duration) {
	b.until, b.asked = time.Now().Add(pause), true
}

// succeeded reports whether a failure came before.
func (b *backOff) succeeded() bool {
	again := b.failures > 0
	b.failures = 0
	return again
}

// wait blocks while there is a pause, and reports whether ctx goes on.
func (b *backOff) wait(ctx context.Context) bool {
	pause := time.Until(b.until)
	if pause <= 0 {
		return ctx.Err() == nil
	}
	reachable := b.reachable
	if b.asked {
		reachable = nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-reachable:
	case <-timer.C:
	}
	return ctx.Err() == nil
}
