package worker

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/taskstore"
)

// clock knows the store's time without asking for it each time. It goes by
// the machine's monotonic clock from the last good look, so a step of the
// machine's wall clock does not move it.
type clock struct {
	store  taskstore.Clock
	timing *Timing
	outage *outage // its end is noted by the sweep
	log    logrus.FieldLogger

	mu   sync.RWMutex
	look look
}

// look is one reading of the store's clock.
type look struct {
	local time.Time // with monotonic reading
	store time.Time
	error time.Duration // at most so far off: half the round trip
}

// lookAge is how long a precise look is preferred to a later, less precise one.
const lookAge = time.Minute

// now is the store's time; first must have returned before.
func (c *clock) now() time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.look.store.Add(time.Since(c.look.local))
}

// first asks until the store has told its time once, for as long as it is
// away. It returns ctx's cause if that ends before.
func (c *clock) first(ctx context.Context) error {
	wait := backoff{least: c.timing.RetryMin, most: c.timing.RetryMax}
	for failing := false; ; failing = true {
		err := c.ask(ctx)
		if err == nil {
			return nil
		}
		if !failing { // once in a row
			c.log.WithError(err).Warn("store clock unreadable, retrying")
		}
		if err := wait.wait(ctx); err != nil {
			return err
		}
	}
}

// run looks again and again until ctx ends.
func (c *clock) run(ctx context.Context) {
	for pause(ctx, jitter(c.timing.ClockSync)) == nil {
		if err := c.ask(ctx); err != nil && ctx.Err() == nil {
			c.outage.away(time.Now(), err)
		}
	}
}

func (c *clock) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timing.StoreCall, errStoreSlow)
	defer cancel()
	sent := time.Now()
	store, err := c.store.Now(ctx)
	if err != nil {
		return err
	}
	trip := time.Since(sent)
	c.learn(look{local: sent.Add(trip / 2), store: store.UTC(), error: trip / 2})
	return nil
}

// learn takes a look unless the one before was much more precise and is young.
func (c *clock) learn(l look) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.look
	if !old.local.IsZero() && l.error > 2*old.error+time.Millisecond && l.local.Sub(old.local) < lookAge {
		return
	}
	c.look = l
}
