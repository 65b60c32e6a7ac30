package operate

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// gate lets automatic starts through, so that a host whose processes have all
// died is not brought down by bringing them up: a few at a time, many at once
// only for a moment, and none while the host has no room. Operations do not
// pass it.
type gate struct {
	every time.Duration // between starts once the burst is used up
	burst int

	mu       sync.Mutex
	free     int // how many more may be under way
	tokens   int // starts that may begin at once
	gained   time.Time
	closed   time.Time // until then nothing begins
	waiting  []*waiter // those that wait longest first
	awakened *time.Timer
}

// waiter is an automatic start before the gate.
type waiter struct {
	since  time.Time
	passed chan struct{}
}

func newGate(limit, burst int, every time.Duration) *gate {
	return &gate{every: every, burst: burst, free: limit, tokens: burst, gained: time.Now()}
}

// enter waits for the start's turn; it reports false when ctx ended first. The
// turns follow the times since when starts were due: one that gave way and
// comes back has its place again. What passed has to leave.
func (g *gate) enter(ctx context.Context, since time.Time) bool {
	w := &waiter{since: since, passed: make(chan struct{})}
	g.join(w)
	select {
	case <-w.passed:
		return true
	case <-ctx.Done():
	}
	g.mu.Lock()
	at := slices.Index(g.waiting, w)
	if at >= 0 {
		g.waiting = slices.Delete(g.waiting, at, at+1)
	}
	g.mu.Unlock()
	if at < 0 { // its turn came at the same moment
		g.leave(false)
	}
	return false
}

func (g *gate) join(w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, _ := slices.BinarySearchFunc(g.waiting, w, func(other, w *waiter) int {
		return cmp.Or(other.since.Compare(w.since), -1) // behind those that wait as long
	})
	g.waiting = slices.Insert(g.waiting, at, w)
	g.admit()
}

// leave ends a turn. One in which no command was run gives back what it took.
func (g *gate) leave(ran bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free++
	if !ran {
		g.tokens = min(g.tokens+1, g.burst)
	}
	g.admit()
}

// pause lets nothing begin for a while. It reports false if that is so already.
func (g *gate) pause(d time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	was := now.Before(g.closed)
	g.closed = now.Add(d)
	return !was
}

// admit lets through whom it can, and comes again when the next one can.
func (g *gate) admit() {
	now := time.Now()
	g.gain(now)
	for len(g.waiting) > 0 && g.free > 0 && g.tokens > 0 && !now.Before(g.closed) {
		g.free--
		g.tokens--
		close(g.waiting[0].passed)
		g.waiting = slices.Delete(g.waiting, 0, 1)
	}
	if len(g.waiting) == 0 || g.free == 0 {
		return // who comes or leaves looks again
	}
	next := g.closed
	if g.tokens == 0 {
		next = later(next, g.gained.Add(g.every))
	}
	if g.awakened != nil {
		g.awakened.Stop()
	}
	g.awakened = time.AfterFunc(next.Sub(now), func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.admit()
	})
}

// gain adds the tokens of the time that has passed.
func (g *gate) gain(now time.Time) {
	n := int(now.Sub(g.gained) / g.every)
	g.gained = g.gained.Add(time.Duration(n) * g.every)
	if g.tokens += n; g.tokens >= g.burst {
		g.tokens, g.gained = g.burst, now
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
