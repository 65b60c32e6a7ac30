package bus

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// A trial is a dispatcher's try at a submission that was delivered before, of
// which it leaves a note that outlives it. The note stays when the dispatcher
// dies over the message, so the notes count deaths, which the number of
// deliveries does not: that also counts every time the message was put off.

// Trials returns how many tries at a submission did not come to an end.
func (b *Bus) Trials(ctx context.Context, s *Submission) (int, error) {
	stream, err := b.js.Stream(ctx, StreamSubmitTrials)
	if err != nil {
		return 0, publishError("count the trials of submission "+s.ID(), err)
	}
	msg, err := stream.GetLastMsgForSubject(ctx, trialSubject(s))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return 0, nil
	case err != nil:
		return 0, publishError("count the trials of submission "+s.ID(), err)
	}
	n, _ := strconv.Atoi(string(msg.Data)) // what is not ours counts as none
	return max(n, 0), nil
}

// BeginTrial notes the n-th try at a submission.
func (b *Bus) BeginTrial(ctx context.Context, s *Submission, n int) error {
	if _, err := b.js.Publish(ctx, trialSubject(s), []byte(strconv.Itoa(n))); err != nil {
		return publishError("note a trial of submission "+s.ID(), err)
	}
	return nil
}

// EndTrial notes that the last try came to an end, with n that did not.
func (b *Bus) EndTrial(ctx context.Context, s *Submission, n int) error {
	if n > 0 {
		return b.BeginTrial(ctx, s, n)
	}
	stream, err := b.js.Stream(ctx, StreamSubmitTrials)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(trialSubject(s)))
	}
	if err != nil {
		return publishError("forget the trials of submission "+s.ID(), err)
	}
	return nil
}

// trialSubject has the notes on one submission.
//
//	procfleet.submit.trial.17-1795000000000000000
func trialSubject(s *Submission) string {
	return "procfleet.submit.trial." + strings.ReplaceAll(s.ID(), ".", "-")
}
