// Package storecall is how the parts of a worker call the task store: with a
// timeout, repeated while the store is unavailable, by the store's clock, and
// with one log line for an outage that all of them notice.
package storecall

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Jitter returns d, 10 % more or less, so that many workers do not move in step.
func Jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.2*float64(d))
}

// Pause waits for d, or until ctx ends, and then returns the cause of that.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Policy bounds calls to the store and the pauses between retries.
type Policy struct {
	RetryMin, RetryMax time.Duration
	Timeout            time.Duration // of one call
}

// Backoff is a jittered pause that doubles from the policy's RetryMin to its
// RetryMax. Make one with [Policy.Backoff].
type Backoff struct {
	policy Policy
	next   time.Duration
}

// Backoff returns a pause that begins with RetryMin.
func (p Policy) Backoff() Backoff { return Backoff{policy: p} }

// Wait pauses, or returns the cause of ctx's end.
func (b *Backoff) Wait(ctx context.Context) error {
	b.next = min(max(b.next, b.policy.RetryMin), b.policy.RetryMax)
	d := b.next
	b.next *= 2
	return Pause(ctx, Jitter(d))
}

// Reset has the next pause be the shortest again.
func (b *Backoff) Reset() { b.next = 0 }

var errTimeout = errors.New("the task store did not answer in time")

// WithTimeout returns the context of one call.
func (p Policy) WithTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, p.Timeout, errTimeout)
}

// Retry repeats a call while the store is unavailable, until ctx ends. It returns
// every other error at once.
func (p Policy) Retry(ctx context.Context, call func(context.Context) error) error {
	wait := p.Backoff()
	for {
		callCtx, cancel := p.WithTimeout(ctx)
		err := call(callCtx)
		cancel()
		if err == nil || !Unavailable(err) {
			return err
		}
		if ctx.Err() != nil || wait.Wait(ctx) != nil {
			return err
		}
	}
}

// Unavailable reports whether an error means that the store cannot be reached
// now. Any other error is the answer to the call.
func Unavailable(err error) bool {
	return errors.Is(err, taskstore.ErrUnavailable) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errTimeout)
}

// TaskReader is what [ReadTasks] needs of a store.
type TaskReader interface {
	Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
	TasksByID(ctx context.Context, ids []procfleet.TaskID) ([]procfleet.Task, error)
}

// ReadTasks reads tasks: the zero Task for an id without a task. An unreadable
// task must not delay the others: all are then read one by one, and the
// unreadable one has nothing but its ID.
func ReadTasks(ctx context.Context, store TaskReader, log logrus.FieldLogger, ids []procfleet.TaskID) ([]procfleet.Task, error) {
	tasks, err := store.TasksByID(ctx, ids)
	if err == nil {
		return tasks, nil
	}
	if Unavailable(err) || ctx.Err() != nil {
		return nil, fmt.Errorf("read %d tasks: %w", len(ids), err)
	}
	tasks = make([]procfleet.Task, len(ids))
	for i, id := range ids {
		task, err := store.Task(ctx, id)
		switch {
		case err == nil:
			tasks[i] = task
		case errors.Is(err, taskstore.ErrNotFound):
		case Unavailable(err) || ctx.Err() != nil:
			return nil, fmt.Errorf("read task %s: %w", id, err)
		default:
			tasks[i].ID = id
			log.WithError(err).WithField("task", id).Error("task unreadable, visit postponed")
		}
	}
	return tasks, nil
}

const (
	// outageReminder is the pause between log lines while the outage lasts.
	outageReminder = time.Minute
	// outageQuiet is how long no call may have failed before the store counts as
	// available again: one that is full answers reads and refuses writes.
	outageQuiet = 3 * time.Second
)

// Outage logs that the task store is unavailable, once for all parts of a
// worker: when that begins, once a minute, and when it ends.
type Outage struct {
	Log logrus.FieldLogger

	mu            sync.Mutex
	since, logged time.Time // zero while the store is available
	failed        time.Time // when the last call failed
}

// Failed reports a call that failed because the store is unavailable.
func (o *Outage) Failed(now time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = now
	if o.since.IsZero() {
		o.since = now
	} else if now.Sub(o.logged) < outageReminder {
		return
	}
	o.logged = now
	o.Log.WithError(err).WithField("away_for", now.Sub(o.since).Round(time.Second).String()).Warn("task store unavailable, retrying")
}

// Succeeded reports calls that succeeded, the first of which began at the given
// moment. Calls that began before the outage, or between two failures, do not
// end it.
func (o *Outage) Succeeded(began, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() || began.Before(o.since) || now.Sub(o.failed) < outageQuiet {
		return
	}
	o.Log.WithField("away_for", o.failed.Sub(o.since).Round(time.Second).String()).Info("task store available again")
	o.since = time.Time{}
}
