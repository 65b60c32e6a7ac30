package natsintake

import (
	"context"
	"errors"
	"sync"

	"github.com/procfleet/procfleet/internal/bus"
)

// If a dispatcher crashes, JetStream redelivers all messages that it was processing,
// also to other dispatchers. To find the message that causes the crash, redelivered
// messages are processed one at a time, and each has a trial record that remains if the
// dispatcher crashes.

// ErrPoisoned is returned for a message that made dispatchers crash repeatedly.
var ErrPoisoned = errors.New("every dispatcher that received the message crashed, see their logs; a task may have been created: search for it before you publish the message again")

const (
	// trusted is the number of deliveries of a message without a trial.
	trusted = 2
	// maxTrials is the number of crashed trials after which a message is poisoned.
	maxTrials = 3
	// MaxDeliveries is the number of deliveries after which a message that always
	// crashes its dispatcher is poisoned.
	MaxDeliveries = trusted + maxTrials
)

// Trial is one attempt to process a message. Its functions may be called repeatedly.
type Trial struct {
	// Acquit removes the trial record, because the message caused no crash, and ends
	// the trial. Over ends the trial and leaves the record unless Acquit was called.
	Acquit, Over func()
}

// Suspect starts the trial of a message; name identifies the trial. It returns
// [ErrPoisoned] if too many trials of the message ended in a crash. It blocks while
// another trial runs.
//
// No record is written for the first deliveries, nor while the store is unavailable: a
// failure then has other causes than the message.
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

// remove removes a trial record. It retries while pulling has not ended, so that an
// unavailable broker does not count against the message.
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

// StoreAvailable reports whether the task store currently replies.
func (in *Intake) StoreAvailable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, in.cfg.Accept)
	defer cancel()
	_, err := in.cfg.Clock.Now(ctx)
	return err == nil
}
