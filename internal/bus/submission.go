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

// Submission is an operation that a producer published. The dispatcher must end it
// with [Submission.Done] or [Submission.PutOff]; otherwise it is redelivered.
type Submission struct {
	Body []byte
	// Header contains the message's headers under their canonical names, like an
	// HTTP request; producers may send names in any case.
	Header http.Header
	// Sequence is the position in [StreamSubmit], Stored the time of arrival there.
	// Both are the same at every delivery, and together they identify a message
	// even after the stream was lost and recreated.
	Sequence uint64
	Stored   time.Time
	// Delivered is the number of deliveries, including this one.
	Delivered uint64
	// Patience is how long the server waits for [Submission.Working] before it
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
	for _, name := range slices.Sorted(maps.Keys(sent)) { // sorted, so that every delivery yields the same result
		for _, value := range sent[name] {
			s.Header.Add(name, value)
		}
	}
	return s, nil
}

// ID returns the identity of the message in the stream, "<sequence>.<nanoseconds>".
func (s *Submission) ID() string {
	return strconv.FormatUint(s.Sequence, 10) + "." + strconv.FormatInt(s.Stored.UnixNano(), 10)
}

// Context returns ctx with the producer's trace.
func (s *Submission) Context(ctx context.Context) context.Context {
	return tracecontext.Extract(ctx, nats.Header(s.Header))
}

// Done removes the message and waits for the server's confirmation.
func (s *Submission) Done(ctx context.Context) error {
	if err := s.msg.DoubleAck(ctx); err != nil {
		return publishError("acknowledge submission "+s.ID(), err)
	}
	return nil
}

// PutOff requests redelivery of the message, to any dispatcher, after the given
// delay.
func (s *Submission) PutOff(after time.Duration) error { return s.msg.NakWithDelay(after) }

// Working extends the ack deadline of the message.
func (s *Submission) Working() error { return s.msg.InProgress() }

// Submissions is the consumer shared by all dispatchers.
type Submissions struct{ consumer jetstream.Consumer }

// OpenSubmissions returns the consumer of published submissions.
func (b *Bus) OpenSubmissions(ctx context.Context) (*Submissions, error) {
	consumer, err := b.consumer(ctx, StreamSubmit, submitConsumer)
	if err != nil {
		return nil, err
	}
	return &Submissions{consumer}, nil
}

// Fetch requests up to n messages and calls handle with each as it arrives. It
// returns after n messages or after wait.
func (s *Submissions) Fetch(n int, wait time.Duration, handle func(*Submission)) error {
	batch, err := s.consumer.Fetch(n, jetstream.FetchMaxWait(wait))
	if err != nil {
		return publishError("pull submissions", err)
	}
	for msg := range batch.Messages() {
		submission, err := newSubmission(msg)
		if err != nil {
			return err // not delivered by JetStream
		}
		submission.Patience = s.consumer.CachedInfo().Config.AckWait
		handle(submission)
	}
	if err := batch.Error(); err != nil {
		return publishError("pull submissions", err)
	}
	return nil
}

// SubmissionCounts returns the number of submissions that are neither accepted nor
// failed, and the number of failed submissions in the stream.
func (b *Bus) SubmissionCounts(ctx context.Context) (waiting, failed uint64, err error) {
	for name, count := range map[string]*uint64{StreamSubmit: &waiting, StreamSubmitFailed: &failed} {
		stream, err := b.js.Stream(ctx, name)
		if err != nil {
			return 0, 0, publishError("read "+name, err)
		}
		*count = stream.CachedInfo().State.Msgs
	}
	return waiting, failed, nil
}

// Reply publishes the outcome of a submission on the producer's reply subject,
// which the caller has checked with [CheckReplySubject]. It is sent before any
// later message of this bus.
func (b *Bus) Reply(subject string, header http.Header, body []byte) error {
	msg := &nats.Msg{Subject: subject, Header: nats.Header(header), Data: body}
	if err := b.js.Conn().PublishMsg(msg); err != nil {
		return publishError("reply to a submission", err)
	}
	return nil
}
