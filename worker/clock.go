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
	store taskstore.Clock
	every time.Duration
	log   logrus.FieldLogger

	mu   sync.RWMutex
	look look
}

// look is one reading of the store's clock.
type look struct {
	local time.Time // with monotonic reading; zero before the first look
	store time.Time
	error time.Duration // at most so far off: half the round trip
}

// lookAge is how long a precise look is preferred to a later, less precise one.
const lookAge = time.Minute

// now is the store's time; the machine's until the store was asked once.
func (c *clock) now() time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.look.local.IsZero() {
		return time.Now().UTC()
	}
	return c.look.store.Add(time.Since(c.look.local))
}

func (c *clock) run(ctx context.Context) {
	for {
		if err := c.ask(ctx); err != nil && ctx.Err() == nil {
			c.log.WithError(err).Warn("store's clock not readable")
		}
		if pause(ctx, jitter(c.every)) != nil {
			return
		}
	}
}

func (c *clock) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.every, errStoreSlow)
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
