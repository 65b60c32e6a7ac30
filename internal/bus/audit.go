package bus

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/procfleet/procfleet/internal/audit"
)

// auditAll matches the subjects of the audit log, which end with the event:
//
//	procfleet.audit.accepted
const (
	auditPrefix = "procfleet.audit."
	auditAll    = auditPrefix + ">"
)

// maxAuditMessage exceeds the size of every record: all its parts are bounded.
const maxAuditMessage = 64 << 10

// AuditSink returns a sink that publishes audit records to [StreamAudit], and those of the
// acceptance and the withdrawal of tasks to [StreamEvents].
func (b *Bus) AuditSink() audit.Sink { return auditSink{b} }

type auditSink struct{ bus *Bus }

func (auditSink) Name() string { return "stream" }

// HasTaskEvents returns true: they are in [StreamEvents].
func (auditSink) HasTaskEvents() bool { return true }

func auditSubject(e audit.Event) string {
	switch e {
	case audit.Accepted:
		return subjectAccepted
	case audit.Finished:
		return subjectRejected // the end of a task without an event
	case audit.Change, audit.Refused, audit.Transition:
	}
	return auditPrefix + string(e)
}

// Keep publishes all records and waits for their acknowledgements. The stream
// drops a record that is repeated within two minutes.
func (p auditSink) Keep(ctx context.Context, lines []audit.Line, _ bool) error {
	futures := make([]jetstream.PubAckFuture, 0, len(lines))
	var errs []error
	for i := range lines {
		msg := &nats.Msg{Subject: auditSubject(lines[i].Event), Data: lines[i].JSON, Header: nats.Header{}}
		msg.Header.Set(jetstream.MsgIDHeader, lines[i].ID)
		future, err := p.bus.js.PublishMsgAsync(msg, jetstream.WithStallWait(stallWait))
		if err != nil {
			errs = append(errs, err)
			break // the other records would fail for the same reason
		}
		futures = append(futures, future)
	}
	for _, future := range futures {
		if _, err := p.bus.acknowledged(ctx, future); err != nil {
			errs = append(errs, err)
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		return publishError("store audit records", err)
	}
	return nil
}

// AuditPosition is a position in the audit log: the last messages read of [StreamAudit] and
// of [StreamEvents]. The zero position is the beginning.
type AuditPosition struct{ Records, Events uint64 }

// ReadAudit calls visit with each record received since the given time (zero:
// all), as JSON without a line break: the records of [StreamAudit] and the events in
// [StreamEvents], in the order of arrival. It returns after the last
// record (with follow: when ctx ends), or when visit returns an error.
func (b *Bus) ReadAudit(ctx context.Context, since time.Time, follow bool, visit func(record []byte) error) error {
	return b.readAudit(ctx, since, AuditPosition{}, follow, func(record []byte, _ AuditPosition) error { return visit(record) })
}

// AuditPage calls visit with each record after a position, or without one since the given
// time, until visit returns false. It returns the position of the last record visited.
func (b *Bus) AuditPage(ctx context.Context, since time.Time, after AuditPosition, visit func(record []byte) (more bool)) (AuditPosition, error) {
	err := b.readAudit(ctx, since, after, false, func(record []byte, at AuditPosition) error {
		after = at
		if !visit(record) {
			return errPageEnds
		}
		return nil
	})
	if errors.Is(err, errPageEnds) {
		err = nil
	}
	return after, err
}

var errPageEnds = errors.New("the page ends")

func (b *Bus) readAudit(ctx context.Context, since time.Time, after AuditPosition, follow bool, visit func(record []byte, at AuditPosition) error) error {
	group, ctx := errgroup.WithContext(ctx)
	records := &auditSource{messages: make(chan auditMessage), position: after.Records}
	events := &auditSource{messages: make(chan auditMessage), position: after.Events}
	group.Go(func() error {
		return b.readStream(ctx, StreamAudit, auditAll, since, after.Records, follow, func(m auditMessage) error {
			return records.send(ctx, m)
		})
	})
	group.Go(func() error {
		return b.readStream(ctx, StreamEvents, tasksAll, since, after.Events, follow, func(m auditMessage) error {
			m.record = recordOfEvent(m.subject, m.record)
			return events.send(ctx, m)
		})
	})
	group.Go(func() error {
		return merge(ctx, records, events, follow, func(record []byte) error {
			return visit(record, AuditPosition{records.position, events.position})
		})
	})
	if err := group.Wait(); err != nil && !errors.Is(err, errPageEnds) {
		return publishError("read the audit log", err)
	} else if err != nil {
		return err
	}
	return nil
}

// recordOfEvent returns the audit record in an event, or nil if there is none.
func recordOfEvent(subject string, event []byte) []byte {
	if subject == subjectAccepted || subject == subjectRejected {
		return event
	}
	e, is := readTaskEvent(subject, event)
	if !is {
		return nil
	}
	text, err := json.Marshal(&e.Record)
	if err != nil {
		return nil // cannot happen: every Record can be encoded
	}
	return text
}

// auditMessage is a message of StreamAudit or StreamEvents.
type auditMessage struct {
	subject  string
	record   []byte // nil if the message contains no record
	at       time.Time
	sequence uint64
	last     bool // no further message is stored in the stream at the moment
}

// auditSource is one of the two streams that merge reads.
type auditSource struct {
	messages chan auditMessage
	position uint64        // sequence of the last message visited
	head     *auditMessage // received, but not visited yet
	idle     bool          // no further message is stored in the stream at the moment
}

func (s *auditSource) send(ctx context.Context, m auditMessage) error {
	select {
	case s.messages <- m:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *auditSource) receive(ctx context.Context) error {
	select {
	case m := <-s.messages:
		s.head, s.idle = &m, m.last
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// merge calls visit with the records of both sources in the order of arrival.
func merge(ctx context.Context, a, b *auditSource, follow bool, visit func(record []byte) error) error {
	for {
		for _, s := range []*auditSource{a, b} {
			if s.head == nil && !s.idle {
				if err := s.receive(ctx); err != nil {
					return err
				}
			}
		}
		first := a
		if a.head == nil || b.head != nil && b.head.at.Before(a.head.at) {
			first = b
		}
		switch {
		case first.head != nil:
			first.position = max(first.position, first.head.sequence)
			if record := first.head.record; record != nil {
				if err := visit(record); err != nil {
					return err
				}
			}
			first.head = nil
		case !follow:
			return nil
		default:
			if err := receiveEither(ctx, a, b); err != nil {
				return err
			}
		}
	}
}

func receiveEither(ctx context.Context, a, b *auditSource) error {
	select {
	case m := <-a.messages:
		a.head, a.idle = &m, m.last
	case m := <-b.messages:
		b.head, b.idle = &m, m.last
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// readStream calls visit with each message of a stream after the sequence, or without one
// since the given time. For a stream without such messages it calls visit once without data.
func (b *Bus) readStream(ctx context.Context, stream, subject string, since time.Time, after uint64, follow bool, visit func(auditMessage) error) error {
	from := jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverAllPolicy}
	switch {
	case after > 0:
		from.DeliverPolicy, from.OptStartSeq = jetstream.DeliverByStartSequencePolicy, after+1
	case !since.IsZero():
		from.DeliverPolicy, from.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	consumer, err := b.js.OrderedConsumer(ctx, stream, from)
	if err != nil {
		return err
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		return err
	}
	if info.NumPending == 0 {
		if err := visit(auditMessage{last: true}); err != nil || !follow {
			return err
		}
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		last := meta.NumPending == 0
		m := auditMessage{subject: msg.Subject(), record: msg.Data(), at: meta.Timestamp, sequence: meta.Sequence.Stream, last: last}
		if err := visit(m); err != nil || last && !follow {
			return err
		}
	}
}
