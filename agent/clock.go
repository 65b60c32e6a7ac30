package agent

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// clock estimates the servers' time. It is safe for concurrent use.
//
// It reads two local clocks: the clock since boot stops while a virtual machine is paused,
// and the wall clock jumps when it is set. In a virtual machine that is resumed from a
// snapshot both are wrong. A message that was sent after the estimated time reveals that;
// see [clock.behind].
type clock struct {
	read  func() reading
	known chan struct{} // closed at the first estimate

	mu     sync.Mutex
	synced bool
	server time.Time // servers' time at the local time at
	at     reading
	bound  time.Duration // error bound of server: half of the round trip
}

// reading is a moment on both local clocks.
type reading struct {
	wall      time.Time
	monotonic time.Duration // time since an arbitrary moment
}

func newClock() *clock {
	elapsed := elapsedClock()
	return &clock{known: make(chan struct{}), read: func() reading {
		return reading{wall: time.Now().Round(0), monotonic: elapsed()}
	}}
}

// workerSkew bounds the difference between the clocks of workers: each worker reads the
// store's clock separately.
const workerSkew = 500 * time.Millisecond

// driftPart is the inverse of the assumed clock drift: 0.02 %, twice that of usual
// computer clocks.
const driftPart = 5000

// observe updates the estimate with server, the servers' time in a reply. took has the
// local times of the request and of the reply.
func (c *clock) observe(took exchange, server time.Time) {
	received := took.received
	bound := (received.monotonic - took.sent.monotonic) / 2 // half of the round trip
	c.mu.Lock()
	defer c.mu.Unlock()
	server = server.Add(bound)
	if c.synced && bound > c.uncertainty(received) && !c.jumped(received) && !c.contradicted(server, bound, received) {
		return // a slow reply is less precise than the estimate
	}
	if !c.synced {
		close(c.known)
	}
	c.synced, c.server, c.at, c.bound = true, server, received, bound
}

// elapsed returns the time since the reading of the estimate, by the clock since boot.
func (c *clock) elapsed(now reading) time.Duration { return now.monotonic - c.at.monotonic }

// contradicted reports whether the estimate and a reply contradict each other beyond their
// error bounds: both local clocks stopped, or the server's clock was set.
func (c *clock) contradicted(server time.Time, bound time.Duration, received reading) bool {
	return server.Sub(c.server.Add(c.elapsed(received))).Abs() > bound+c.uncertainty(received)
}

// jumped reports whether the local clocks disagree about the time since c.at by more than a
// second.
func (c *clock) jumped(now reading) bool {
	return (c.elapsed(now) - now.wall.Sub(c.at.wall)).Abs() > time.Second
}

func (c *clock) uncertainty(now reading) time.Duration {
	return c.bound + c.elapsed(now)/driftPart
}

// surelyBefore reports whether the servers' time is before t, even with the error bound of
// the estimate. It returns false without an estimate: the local clock may be wrong by days.
func (c *clock) surelyBefore(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced && c.latest().Before(t)
}

// behind reports whether the estimate is missing or too early. sent is the time at which a
// worker sent a message, by the servers' clock: an estimate before sent is too early.
func (c *clock) behind(sent time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.synced || sent.After(c.latest().Add(workerSkew))
}

// latest returns the estimate plus its error bound.
func (c *clock) latest() time.Time {
	now := c.read()
	return c.server.Add(max(now.wall.Sub(c.at.wall), c.elapsed(now)) + c.uncertainty(now))
}

// now returns the estimated servers' time, or the local time without an estimate. It
// ignores steps of the local wall clock: after a pause of the machine it is late until the
// servers' time is read again.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.read()
	if !c.synced {
		return now.wall
	}
	return c.server.Add(c.elapsed(now))
}

// offset returns the servers' time minus the local time; 0 without an estimate.
func (c *clock) offset() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.synced {
		return 0
	}
	return c.server.Sub(c.at.wall)
}

// correct converts the times of a result to the servers' time.
func (c *clock) correct(r *agentproto.Result) {
	offset := c.offset()
	for _, t := range []*time.Time{&r.AcceptedAt, &r.StartedAt, &r.FinishedAt} {
		if !t.IsZero() {
			*t = t.Add(offset).UTC()
		}
	}
}
