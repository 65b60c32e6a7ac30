package operate

import (
	"context"
	"sync"
	"time"
)

// drain counts what is under way, and lets nothing begin once it is closed.
type drain struct {
	mu       sync.Mutex
	closed   bool
	underway int
	idle     chan struct{} // closed when drain is closed and nothing is under way
}

func newDrain() *drain { return &drain{idle: make(chan struct{})} }

// begin reports whether one more may begin; its end must be told to end.
func (d *drain) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.underway++
	return true
}

func (d *drain) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.underway--
	if d.closed && d.underway == 0 {
		close(d.idle)
	}
}

// wait closes the drain and waits until nothing is under way, at most limit
// and not beyond ctx.
func (d *drain) wait(ctx context.Context, limit time.Duration) {
	d.mu.Lock()
	if !d.closed && d.underway == 0 {
		close(d.idle)
	}
	d.closed = true
	d.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-d.idle:
	case <-timer.C:
	case <-ctx.Done():
	}
}
