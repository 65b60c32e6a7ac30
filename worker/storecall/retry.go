// Package storecall calls the task store for the parts of a worker: it adds timeouts,
// retries while the store is unavailable, an estimate of the store's clock, and one log
// line per outage for all parts.
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

// Jitter returns d ± 10 % at random, so that workers do not act in lockstep.
func Jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.2*float64(d))
}

// Pause waits for d. If ctx ends first, it returns the cause.
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
	Timeout            time.Duration // per call
}

// Backoff is a jittered pause that doubles from RetryMin to RetryMax of its policy.
// [Policy.Backoff] returns one.
type Backoff struct {
	policy Policy
	next   time.Duration
}

// Backoff returns a pause that starts at RetryMin.
func (p Policy) Backoff() Backoff { return Backoff{policy: p} }

// Wait pauses. If ctx ends first, it returns the cause.
func (b *Backoff) Wait(ctx context.Context) error {
	b.next = min(max(b.next, b.policy.RetryMin), b.policy.RetryMax)
	d := b.next
	b.next *= 2
	return Pause(ctx, Jitter(d))
}

var errTimeout = errors.New("the task store did not answer in time")

// WithTimeout returns a context with the timeout of one call.
func (p Policy) WithTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, p.Timeout, errTimeout)
}

// Retry repeats call while the store is unavailable and ctx has not ended.
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

// Unavailable reports whether err means that the store cannot be reached. Any other
// error is the store's reply to the call.
func Unavailable(err error) bool {
	return errors.Is(err, taskstore.ErrUnavailable) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errTimeout)
}

// TaskReader has the calls to a task store that [ReadTasks] uses.
type TaskReader interface {
	Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
	TasksByID(ctx context.Context, ids []procfleet.TaskID) ([]procfleet.Task, error)
}

// ReadTasks returns the tasks with the given ids, and the zero Task for an id without a
// task. If one task is unreadable, all tasks are read one by one; the unreadable task
// is returned with its ID only, so that it does not delay the others.
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
			log.WithError(err).WithField("task", id).Error("task unreadable, skipped")
		}
	}
	return tasks, nil
}

const (
	// outageReminder is the interval of log lines during an outage.
	outageReminder = time.Minute
	// outageQuiet is the time without failed calls after which the outage is over. A
	// full store, for example, serves reads while it rejects writes.
	outageQuiet = 3 * time.Second
)

// Outage logs an outage of the task store once for all parts of a worker: at the start,
// once a minute, and at the end.
type Outage struct {
	Log logrus.FieldLogger

	mu            sync.Mutex
	since, logged time.Time // start of the outage and last log line; since is zero without an outage
	failed        time.Time // time of the last failed call
}

// Failed records a call that failed because the store is unavailable.
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
	o.Log.WithError(err).WithField("unavailable_for", now.Sub(o.since).Round(time.Second).String()).Warn("task store unavailable, retrying")
}

// Succeeded records successful calls, the first of which started at began. Calls that
// started before the outage, or ended soon after a failure, do not end the outage.
func (o *Outage) Succeeded(began, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() || began.Before(o.since) || now.Sub(o.failed) < outageQuiet {
		return
	}
	o.Log.WithField("unavailable_for", o.failed.Sub(o.since).Round(time.Second).String()).Info("task store recovered")
	o.since = time.Time{}
}
