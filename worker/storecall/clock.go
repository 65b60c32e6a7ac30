package storecall

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Clock estimates the store's time between readings by the machine's monotonic
// clock, so that a step of the machine's wall clock does not move it. It is safe
// for concurrent use.
type Clock struct {
	Store  taskstore.Clock
	Policy Policy
	Every  time.Duration // between readings
	Outage *Outage
	Log    logrus.FieldLogger

	mu   sync.RWMutex
	last reading
}

// reading is one reading of the store's clock.
type reading struct {
	local time.Time // with monotonic reading
	store time.Time
	error time.Duration // bound: half the round trip
}

// readingAge is how long a precise reading is preferred to a later, less precise one.
const readingAge = time.Minute

// ClockAt returns a clock that was read once, when it was the given time.
func ClockAt(now time.Time) *Clock {
	return &Clock{last: reading{local: time.Now(), store: now}}
}

// Now returns the store's time. [Clock.Start] must have returned nil before.
func (c *Clock) Now() time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.last.store.Add(time.Since(c.last.local))
}

// Start reads the store's clock once, and retries while that fails. It returns
// the cause of ctx's end if that comes first.
func (c *Clock) Start(ctx context.Context) error {
	wait := c.Policy.Backoff()
	for failing := false; ; failing = true {
		err := c.read(ctx)
		if err == nil {
			return nil
		}
		if !failing { // once in a row
			c.Log.WithError(err).Warn("store clock unreadable, retrying")
		}
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}

// Run reads the clock periodically until ctx ends.
func (c *Clock) Run(ctx context.Context) {
	for Pause(ctx, Jitter(c.Every)) == nil {
		if err := c.read(ctx); err != nil && ctx.Err() == nil {
			c.Outage.Failed(time.Now(), err)
		}
	}
}

func (c *Clock) read(ctx context.Context) error {
	ctx, cancel := c.Policy.WithTimeout(ctx)
	defer cancel()
	sent := time.Now()
	store, err := c.Store.Now(ctx)
	if err != nil {
		return err
	}
	trip := time.Since(sent)
	c.update(reading{local: sent.Add(trip / 2), store: store.UTC(), error: trip / 2})
	return nil
}

// update replaces the last reading unless that was much more precise and is recent.
func (c *Clock) update(r reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.last
	if !old.local.IsZero() && r.error > 2*old.error+time.Millisecond && r.local.Sub(old.local) < readingAge {
		return
	}
	c.last = r
}

// SteppedClock times tasks whose moments are later than now, because the store's
// clock stepped back since. Timed from such a moment, a task would end late by
// the size of the step; it is timed from when this worker first read the moment
// instead, and takes at most twice as long as without a step. The zero value is
// ready for use, also concurrently.
type SteppedClock struct {
	mu    sync.Mutex
	first map[procfleet.TaskID]time.Time
}

// maxStepped bounds the memory; tasks beyond it are timed anew.
const maxStepped = 1 << 16

// Deadline is when an open task is overdue.
func (s *SteppedClock) Deadline(task *procfleet.Task, now time.Time) time.Time {
	return s.Since(task.ID, task.CreatedAt, now).Add(task.Deadline.Sub(task.CreatedAt))
}

// Since is the moment from which to time what began at the given moment of a
// task; it is never later than that.
func (s *SteppedClock) Since(id procfleet.TaskID, at, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, known := s.first[id]
	if !known {
		if !at.After(now) {
			return at
		}
		if s.first == nil || len(s.first) >= maxStepped { // most of them have ended by their results
			s.first = map[procfleet.TaskID]time.Time{}
		}
		first = now
		s.first[id] = now
	}
	if first.After(at) {
		return at
	}
	return first
}

// Forget ends the timing of a task.
func (s *SteppedClock) Forget(id procfleet.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.first, id)
}
