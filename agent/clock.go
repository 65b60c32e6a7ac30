package agent

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// clock estimates the server's time. It is safe for concurrent use.
//
// It follows two local clocks, because each can be wrong where the other is
// right: the one since boot stands still while a virtual machine is paused, the
// wall clock jumps when it is set. Both stand still in a guest that is resumed
// from a snapshot; a message that was sent after the estimate shows that.
type clock struct {
	read  func() reading
	known chan struct{} // closed once the server's time is known

	mu     sync.Mutex
	synced bool
	server time.Time // the server's time at local time at
	at     reading
	bound  time.Duration // half of the round trip
}

// reading is one moment on both local clocks.
type reading struct {
	wall      time.Time
	monotonic time.Duration // since an arbitrary moment
}

func newClock() *clock {
	elapsed := elapsedClock()
	return &clock{known: make(chan struct{}), read: func() reading {
		return reading{wall: time.Now().Round(0), monotonic: elapsed()}
	}}
}

// since returns how long ago an earlier reading was by each clock.
func (r reading) since(earlier reading) (wall, monotonic time.Duration) {
	return r.wall.Sub(earlier.wall), r.monotonic - earlier.monotonic
}

// workerSkew is how far the workers' estimates of the server's time may lie
// apart: each reads the store's clock for itself.
const workerSkew = 500 * time.Millisecond

// driftPart is how fast the uncertainty grows: two parts in 10,000, twice
// what computer clocks are usually off.
const driftPart = 5000

// observe learns from a request that was sent and answered at the given
// moments, the answer saying what time it is at the server.
func (c *clock) observe(sent, answered reading, server time.Time) {
	_, roundTrip := answered.since(sent)
	bound := roundTrip / 2
	c.mu.Lock()
	defer c.mu.Unlock()
	server = server.Add(bound)
	if c.synced && bound > c.uncertainty(answered) && !c.jumped(answered) && !c.contradicted(server, bound, answered) {
		return // a slow answer says less than what is known
	}
	if !c.synced {
		close(c.known)
	}
	c.synced, c.server, c.at, c.bound = true, server, answered, bound
}

// contradicted reports whether the estimate and an answer cannot both be right:
// the local clocks stood still together, or the server's clock was set.
func (c *clock) contradicted(server time.Time, bound time.Duration, answered reading) bool {
	_, monotonic := answered.since(c.at)
	return server.Sub(c.server.Add(monotonic)).Abs() > bound+c.uncertainty(answered)
}

// jumped reports whether the local clocks disagree about the time since at.
func (c *clock) jumped(now reading) bool {
	wall, monotonic := now.since(c.at)
	return (monotonic - wall).Abs() > time.Second
}

func (c *clock) uncertainty(now reading) time.Duration {
	_, monotonic := now.since(c.at)
	return c.bound + monotonic/driftPart
}

// surelyBefore reports whether the server's time is before t whatever the
// errors of the estimate are. Before the server's time is known nothing is:
// the local clock may be wrong by days.
func (c *clock) surelyBefore(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced && c.latest().Before(t)
}

// behind reports whether a message that a worker sent at the given moment of
// the server's time shows that the estimate is too early, or there is none.
func (c *clock) behind(sent time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.synced || sent.After(c.latest().Add(workerSkew))
}

// latest is the latest moment that it may be at the server by the estimate.
func (c *clock) latest() time.Time {
	now := c.read()
	wall, monotonic := now.since(c.at)
	return c.server.Add(max(wall, monotonic) + c.uncertainty(now))
}

// now is the server's time as far as it is known; before that, the local
// clock's. It does not jump with the local wall clock: after a pause of the
// machine it is late until the server's time is heard again.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.read()
	if !c.synced {
		return now.wall
	}
	_, monotonic := now.since(c.at)
	return c.server.Add(monotonic)
}

// offset is what must be added to a local time to get the server's.
func (c *clock) offset() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.synced {
		return 0
	}
	return c.server.Sub(c.at.wall)
}

// correct turns a result's timeline into the server's time.
func (c *clock) correct(r *agentproto.Result) {
	offset := c.offset()
	for _, t := range []*time.Time{&r.AcceptedAt, &r.StartedAt, &r.FinishedAt} {
		if !t.IsZero() {
			*t = t.Add(offset).UTC()
		}
	}
}
