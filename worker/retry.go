package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/procfleet/procfleet/taskstore"
)

// jitter returns d, 10 % more or less, so that many workers do not move in step.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.2*float64(d))
}

// pause waits for d or until ctx ends, whose cause it then returns.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// backoff is a jittered pause that doubles from least to most.
type backoff struct {
	least, most time.Duration
	next        time.Duration
}

func (b *backoff) wait(ctx context.Context) error {
	b.next = min(max(b.next, b.least), b.most)
	d := b.next
	b.next *= 2
	return pause(ctx, jitter(d))
}

func (b *backoff) reset() { b.next = 0 }

// untilStored repeats a call to the store while the store is away, until ctx
// ends. Every other error is returned at once.
func (t Timing) untilStored(ctx context.Context, call func(context.Context) error) error {
	wait := backoff{least: t.RetryMin, most: t.RetryMax}
	for {
		callCtx, cancel := context.WithTimeoutCause(ctx, t.StoreCall, errStoreSlow)
		err := call(callCtx)
		cancel()
		if err == nil || !storeAway(err) {
			return err
		}
		if ctx.Err() != nil || wait.wait(ctx) != nil {
			return err
		}
	}
}

var errStoreSlow = errors.New("the task store did not answer in time")

// storeAway tells that the store cannot be asked now from everything else.
func storeAway(err error) bool {
	return errors.Is(err, taskstore.ErrUnavailable) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errStoreSlow)
}
