package storecall

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Clock estimates the store's time. Between readings of the store's clock it uses the
// monotonic clock, so steps of the wall clock have no effect. It is safe for concurrent
// use.
type Clock struct {
	Store  taskstore.Clock
	Policy Policy
	Every  time.Duration // interval of readings
	Outage *Outage
	Log    logrus.FieldLogger

	mu   sync.RWMutex
	last reading
}

// reading is one reading of the store's clock.
type reading struct {
	local time.Time // local time, with a monotonic reading
	store time.Time
	error time.Duration // maximum error: half of the round trip
}

// readingAge is how long a precise reading is preferred to later, less precise ones.
const readingAge = time.Minute

// ClockAt returns a clock with one reading: that the store's time is now.
func ClockAt(now time.Time) *Clock {
	return &Clock{last: reading{local: time.Now(), store: now}}
}

// Now returns the estimated store time. [Clock.Start] must have returned nil before.
func (c *Clock) Now() time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.last.store.Add(time.Since(c.last.local))
}

// Start reads the store's clock once and retries until it succeeds. If ctx ends first,
// it returns the cause.
func (c *Clock) Start(ctx context.Context) error {
	wait := c.Policy.Backoff()
	for failing := false; ; failing = true {
		err := c.read(ctx)
		if err == nil {
			return nil
		}
		if !failing { // log the first of consecutive failures
			c.Log.WithError(err).Warn("store clock unreadable, retrying")
		}
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}

// Run reads the store's clock periodically until ctx ends.
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

// update replaces the last reading unless that reading is recent and much more precise.
func (c *Clock) update(r reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.last
	if !old.local.IsZero() && r.error > 2*old.error+time.Millisecond && r.local.Sub(old.local) < readingAge {
		return
	}
	c.last = r
}

// SteppedClock handles tasks with timestamps in the future, which exist after the
// store's clock stepped back. Measured from such a timestamp, a task would end late by
// the size of the step. SteppedClock measures from the time at which this worker first
// read the timestamp after the last step, so each step prolongs a task by at most the time
// that it has anyway. The zero value is ready for use. It is safe for concurrent use.
type SteppedClock struct {
	mu    sync.Mutex
	first map[procfleet.TaskID]time.Time
}

// maxStepped bounds the stored first times. When it is reached, all are deleted.
const maxStepped = 1 << 16

// Deadline returns when an open task is overdue.
func (s *SteppedClock) Deadline(task *procfleet.Task, now time.Time) time.Time {
	return s.Since(task.ID, task.CreatedAt, now).Add(task.Deadline.Sub(task.CreatedAt))
}

// Since returns the start time for measuring an interval that began at the timestamp
// at: at itself, or, if at was in the future then, the time of the first call since the
// clock last stepped back.
func (s *SteppedClock) Since(id procfleet.TaskID, at, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, known := s.first[id]
	if !known && !at.After(now) {
		return at
	}
	if !known || first.After(now) { // the clock has stepped back, or once more
		if s.first == nil || len(s.first) >= maxStepped { // most stored tasks are finished
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

// Forget deletes the first time of a task.
func (s *SteppedClock) Forget(id procfleet.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.first, id)
}
