package agent

import (
	"context"
	"math/rand/v2"
	"time"
)

// Limits of the back-off while a stream does not take what is published.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// backOff makes pauses after failures. Its fields belong to the goroutine that
// publishes, end may be called by any.
type backOff struct {
	failures  int           // in a row
	reachable chan struct{} // holds a token when a pause should end
}

func newBackOff() backOff { return backOff{reachable: make(chan struct{}, 1)} }

// end ends a pause, because the connection is back.
func (b *backOff) end() { signal(b.reachable) }

// pause waits after a failure, longer each time, with half of it random so
// that the agents of a fleet do not come back together.
func (b *backOff) pause(ctx context.Context) {
	delay := min(firstRetry<<min(b.failures, 10), lastRetry)
	b.failures++
	timer := time.NewTimer(delay/2 + rand.N(delay/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-b.reachable:
	case <-timer.C:
	}
}
