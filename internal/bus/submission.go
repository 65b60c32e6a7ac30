package bus

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/tracecontext"
)

// Submission is an operation that a producer published. It must be ended by
// [Submission.Done] or [Submission.PutOff]; one that is not comes again.
type Submission struct {
	Body []byte
	// Header has the message's headers under their canonical names, as those
	// of an HTTP request: producers write them as they like.
	Header http.Header
	// Sequence is the position in [StreamSubmit], Stored when the message got
	// there. Both are the same at every delivery, and no two messages share
	// both, not even if the stream was lost and made anew.
	Sequence uint64
	Stored   time.Time
	// Delivered counts the deliveries, this one included.
	Delivered uint64
	// Patience is how long the server waits for [Submission.Working] before
	// redelivers the message.
	Patience time.Duration

	msg jetstream.Msg
}

func newSubmission(msg jetstream.Msg) (*Submission, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("bus: message of %s: %w", StreamSubmit, err)
	}
	s := &Submission{
		Body: msg.Data(), Header: http.Header{},
		Sequence: meta.Sequence.Stream, Stored: meta.Timestamp, Delivered: meta.NumDelivered, msg: msg,
	}
	sent := msg.Headers()
	for _, name := range slices.Sorted(maps.Keys(sent)) { // so that every delivery reads the same
		for _, value := range sent[name] {
			s.Header.Add(name, value)
		}
	}
	return s, nil
}

// ID is the identity of the message in the stream, "<sequence>.<nanoseconds>".
func (s *Submission) ID() string {
	return strconv.FormatUint(s.Sequence, 10) + "." + strconv.FormatInt(s.Stored.UnixNano(), 10)
}

// Context returns ctx with the trace that the producer sent.
func (s *Submission) Context(ctx context.Context) context.Context {
	return tracecontext.Extract(ctx, nats.Header(s.Header))
}

// Done removes the message and returns when the server has confirmed it.
func (s *Submission) Done(ctx context.Context) error {
	if err := s.msg.DoubleAck(ctx); err != nil {
		return publishError("acknowledge submission "+s.ID(), err)
	}
	return nil
}

// PutOff has the message delivered again after the given time, to any
// dispatcher.
func (s *Submission) PutOff(after time.Duration) error { return s.msg.NakWithDelay(after) }

// Working extends the ack deadline of the message.
func (s *Submission) Working() error { return s.msg.InProgress() }

// Submissions is the consumer that all dispatchers share.
type Submissions struct{ consumer jetstream.Consumer }

// OpenSubmissions returns the consumer of what producers publish.
func (b *Bus) OpenSubmissions(ctx context.Context) (*Submissions, error) {
	consumer, err := b.consumer(ctx, StreamSubmit, submitConsumer)
	if err != nil {
		return nil, err
	}
	return &Submissions{consumer}, nil
}

// Fetch asks for up to n messages and hands each over as it arrives, until
// all came or wait is over.
func (s *Submissions) Fetch(n int, wait time.Duration, handle func(*Submission)) error {
	batch, err := s.consumer.Fetch(n, jetstream.FetchMaxWait(wait))
	if err != nil {
		return publishError("pull submissions", err)
	}
	for msg := range batch.Messages() {
		submission, err := newSubmission(msg)
		if err != nil {
			return err // it was not delivered by JetStream
		}
		submission.Patience = s.consumer.CachedInfo().Config.AckWait
		handle(submission)
	}
	if err := batch.Error(); err != nil {
		return publishError("pull submissions", err)
	}
	return nil
}

// SubmissionCounts returns how many submissions are neither accepted nor
// failed, and how many failed ones are kept.
func (b *Bus) SubmissionCounts(ctx context.Context) (waiting, failed uint64, err error) {
	for name, count := range map[string]*uint64{StreamSubmit: &waiting, StreamSubmitFailed: &failed} {
		stream, err := b.js.Stream(ctx, name)
		if err != nil {
			return 0, 0, publishError("look into "+name, err)
		}
		*count = stream.CachedInfo().State.Msgs
	}
	return waiting, failed, nil
}

// Reply sends what became of a submission to the subject that its producer
// named, which the caller has checked with [CheckReplySubject]. It is on its
// way before anything that is sent on this bus later.
func (b *Bus) Reply(subject string, header http.Header, body []byte) error {
	msg := &nats.Msg{Subject: subject, Header: nats.Header(header), Data: body}
	if err := b.js.Conn().PublishMsg(msg); err != nil {
		return publishError("reply to a submission", err)
	}
	return nil
}
