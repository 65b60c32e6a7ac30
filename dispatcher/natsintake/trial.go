package natsintake

import (
	"context"
	"errors"
	"sync"

	"github.com/procfleet/procfleet/internal/bus"
)

// A dispatcher that crashes loses all messages that it processes, and JetStream
// redelivers each of them, also to other dispatchers. To find the message that
// causes the crash, redelivered messages are processed one at a time, and each
// leaves a record that stays if the dispatcher crashes.

// ErrPoisoned ends a message that made dispatchers crash again and again.
var ErrPoisoned = errors.New("dispatchers broke off each time they tried, for reasons that their logs tell; whether a task was made is not known: look for it before you publish this again")

const (
	// trusted is how many deliveries of a message need no trial.
	trusted = 2
	// maxTrials is how many trials of a message may end in a crash.
	maxTrials = 3
	// MaxDeliveries is after how many deliveries a message that always makes its
	// dispatcher crash is poisoned.
	MaxDeliveries = trusted + maxTrials
)

// Trial is one attempt to process a message. Both functions may be called again.
type Trial struct {
	// Acquit removes the record: no failure was caused by the message. Over ends
	// the trial, and leaves the record if it was not removed.
	Acquit, Over func()
}

// Suspect begins the trial of a message under the name of the attempt. It
// returns [ErrPoisoned] for a message whose trials ended in crashes too often.
//
// While the store is unavailable nothing is recorded: then neither failures nor
// crashes say anything about the message.
func (in *Intake) Suspect(ctx context.Context, s *bus.Submission, name string) (Trial, error) {
	nothing := func() {}
	if s.Delivered <= trusted || !in.StoreAvailable(ctx) {
		return Trial{nothing, nothing}, nil
	}
	select {
	case in.alone <- struct{}{}:
	case <-ctx.Done():
		return Trial{}, context.Cause(ctx)
	}
	over := sync.OnceFunc(func() { <-in.alone })
	record := in.cfg.Bus.NewTrial(s, name)
	n, err := record.Before(ctx)
	if err == nil && n >= maxTrials {
		err = ErrPoisoned
	}
	if err != nil {
		over()
		return Trial{}, err
	}
	acquit := sync.OnceFunc(func() { defer over(); in.remove(ctx, record) })
	if err := record.Begin(ctx); err != nil {
		acquit()
		return Trial{}, err
	}
	return Trial{acquit, over}, nil
}

// remove removes a record, and retries while messages are pulled: an
// unavailable broker must not count against the message.
func (in *Intake) remove(pulling context.Context, record *bus.Trial) {
	end := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(pulling), in.cfg.Accept)
		defer cancel()
		return record.End(ctx)
	}
	wait := leastPause
	for err := end(); err != nil; err = end() {
		if !errors.Is(err, bus.ErrUnavailable) || !pause(pulling, wait) {
			in.cfg.Log.WithError(err).Warn("trial record not removed")
			return
		}
		wait = min(2*wait, mostPause)
	}
}

// StoreAvailable reports whether the task store answers now.
func (in *Intake) StoreAvailable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, in.cfg.Accept)
	defer cancel()
	_, err := in.cfg.Clock.Now(ctx)
	return err == nil
}
