package bus

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Trial is a dispatcher's try at a submission that was delivered before, of
// which it leaves a note that outlives it. The note stays when the dispatcher
// dies over the message, so the notes count deaths, which the number of
// deliveries does not: that also counts every time the message was put off.
// Each trial has a note of its own, so that one which ends late, after the
// message went to another dispatcher, takes back no other.
type Trial struct {
	bus  *Bus
	s    *Submission
	name string
}

// NewTrial returns the trial of a name that no other has, one word. Nothing
// is noted yet.
func (b *Bus) NewTrial(s *Submission, name string) *Trial { return &Trial{b, s, name} }

// Before returns how many other trials of the submission did not come to an
// end.
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

// Begin notes the trial. After an error it may be noted all the same.
func (t *Trial) Begin(ctx context.Context) error {
	if _, err := t.bus.js.Publish(ctx, trialSubject(t.s, t.name), nil); err != nil {
		return publishError("note a trial of submission "+t.s.ID(), err)
	}
	return nil
}

// End takes the note back. It may be repeated.
func (t *Trial) End(ctx context.Context) error {
	stream, err := t.bus.js.Stream(ctx, StreamSubmitTrials)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(trialSubject(t.s, t.name)))
	}
	if err != nil {
		return publishError("take back a trial of submission "+t.s.ID(), err)
	}
	return nil
}

// trialSubject has the note on one trial of a submission.
//
//	procfleet.submit.trial.17-1795000000000000000.4bf92f3577b34da6a3ce929d0e0e4736
func trialSubject(s *Submission, name string) string {
	return "procfleet.submit.trial." + strings.ReplaceAll(s.ID(), ".", "-") + "." + name
}
