package agent

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// clock estimates the server's time. It is safe for concurrent use.
//
// It follows two local clocks, because each can be wrong where the other is
// right: the monotonic one stands still while a virtual machine is paused,
// the wall clock jumps when it is set.
type clock struct {
	read  func() reading
	known chan struct{} // closed once the server's time was heard

	mu     sync.Mutex
	synced bool
	server time.Time // the server's time at local time at
	at     reading
	bound  time.Duration // half of the round trip
}

// reading is one moment on both local clocks.
type reading struct {
	wall      time.Time
	monotonic time.Duration // since whenever
}

func newClock() *clock {
	start := time.Now()
	return &clock{known: make(chan struct{}), read: func() reading {
		now := time.Now()
		return reading{wall: now.Round(0), monotonic: now.Sub(start)}
	}}
}

// since returns how long ago an earlier reading was by each clock.
func (r reading) since(earlier reading) (wall, monotonic time.Duration) {
	return r.wall.Sub(earlier.wall), r.monotonic - earlier.monotonic
}

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
	if c.synced && !c.jumped(answered) && bound > c.uncertainty(answered) {
		return // a slow answer says less than what is known
	}
	if !c.synced {
		close(c.known)
	}
	c.synced, c.server, c.at, c.bound = true, server.Add(bound), answered, bound
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
// errors of the estimate are. Until the server's time was heard once, the
// local clock has to do.
func (c *clock) surelyBefore(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.read()
	if !c.synced {
		return now.wall.Before(t)
	}
	wall, monotonic := now.since(c.at)
	return c.server.Add(max(wall, monotonic) + c.uncertainty(now)).Before(t)
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
