package bus

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Trial is a dispatcher's attempt at a redelivered submission, recorded in a
// stream. The record remains if the dispatcher dies while processing the message.
// So the records count crashes, while the number of deliveries also counts delays.
// Each trial has its own record, so that a trial that ends late, after redelivery
// to another dispatcher, removes no other record.
type Trial struct {
	bus  *Bus
	s    *Submission
	name string
}

// NewTrial returns a trial with a unique name of one word. It records nothing.
func (b *Bus) NewTrial(s *Submission, name string) *Trial { return &Trial{b, s, name} }

// Before returns the number of other trials of the submission without an end.
func (t *Trial) Before(ctx context.Context) (int, error) {
	stream, err := t.bus.js.Stream(ctx, StreamSubmitTrials)
	var info *jetstream.StreamInfo
	if err == nil {
		info, err = stream.Info(ctx, jetstream.WithSubjectFilter(trialSubject(t.s, "*")))
	}
	if err != nil {
		return 0, publishError("count the trials of submission "+t.s.ID(), err)
	}
	return len(info.State.Subjects), nil
}

// Begin records the trial. After an error the trial may be recorded nevertheless.
func (t *Trial) Begin(ctx context.Context) error {
	if _, err := t.bus.js.Publish(ctx, trialSubject(t.s, t.name), nil); err != nil {
		return publishError("record a trial of submission "+t.s.ID(), err)
	}
	return nil
}

// End removes the record. It is idempotent.
func (t *Trial) End(ctx context.Context) error {
	stream, err := t.bus.js.Stream(ctx, StreamSubmitTrials)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(trialSubject(t.s, t.name)))
	}
	if err != nil {
		return publishError("remove the record of a trial of submission "+t.s.ID(), err)
	}
	return nil
}

// trialSubject returns the subject of the record of one trial.
//
//	procfleet.submit.trial.17-1795000000000000000.4bf92f3577b34da6a3ce929d0e0e4736
func trialSubject(s *Submission, name string) string {
	return "procfleet.submit.trial." + strings.ReplaceAll(s.ID(), ".", "-") + "." + name
}
