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

// auditAll are the subjects of the audit log, one for each event:
//
//	procfleet.audit.accepted
const (
	auditPrefix = "procfleet.audit."
	auditAll    = auditPrefix + ">"
)

// maxAuditMessage is more than a record has: all its parts are bounded.
const maxAuditMessage = 64 << 10

// AuditSink returns [StreamAudit] as a sink of audit records.
func (b *Bus) AuditSink() audit.Sink { return auditSink{b} }

type auditSink struct{ bus *Bus }

func (auditSink) Name() string { return "stream" }

// HasEnds is true: [StreamEvents] has them.
func (auditSink) HasEnds() bool { return true }

// Keep publishes all records at once. A repeat within two minutes is dropped
// by the stream.
func (p auditSink) Keep(ctx context.Context, lines []audit.Line, _ bool) error {
	futures := make([]jetstream.PubAckFuture, 0, len(lines))
	var errs []error
	for i := range lines {
		msg := &nats.Msg{Subject: auditPrefix + string(lines[i].Event), Data: lines[i].JSON, Header: nats.Header{}}
		msg.Header.Set(jetstream.MsgIDHeader, lines[i].ID)
		future, err := p.bus.js.PublishMsgAsync(msg, jetstream.WithStallWait(stallWait))
		if err != nil {
			errs = append(errs, err)
			break // the others would fail like this one
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
		return publishError("keep audit records", err)
	}
	return nil
}

// ReadAudit calls visit with each record received since a time (zero: all), as
// JSON without a line break: the records of [StreamAudit] and the ends of tasks
// in [StreamEvents], in the order in which the streams received them. It ends
// after the last record, or with ctx if follow is set, or when visit fails.
func (b *Bus) ReadAudit(ctx context.Context, since time.Time, follow bool, visit func(record []byte) error) error {
	group, ctx := errgroup.WithContext(ctx)
	records := &auditSource{messages: make(chan auditMessage)}
	ends := &auditSource{messages: make(chan auditMessage)}
	group.Go(func() error {
		return b.readStream(ctx, StreamAudit, auditAll, since, follow, func(data []byte, at time.Time, last bool) error {
			return records.send(ctx, auditMessage{record: data, at: at, last: last})
		})
	})
	group.Go(func() error {
		return b.readStream(ctx, StreamEvents, SubjectFinished, since, follow, func(data []byte, at time.Time, last bool) error {
			return ends.send(ctx, auditMessage{record: recordOfEnd(data), at: at, last: last})
		})
	})
	group.Go(func() error { return merge(ctx, records, ends, follow, visit) })
	if err := group.Wait(); err != nil {
		return publishError("read the audit log", err)
	}
	return nil
}

// recordOfEnd returns the audit record that an event is; nil if it is none.
func recordOfEnd(event []byte) []byte {
	var e TaskFinished
	if json.Unmarshal(event, &e) != nil {
		return nil
	}
	record, is := e.record()
	if !is {
		return nil
	}
	text, err := json.Marshal(&record)
	if err != nil {
		return nil // a bug: a Record has nothing that JSON cannot express
	}
	return text
}

// auditMessage is a message of one of the streams.
type auditMessage struct {
	record []byte // nil if it is none
	at     time.Time
	last   bool // the stream has no more for now
}

// auditSource is one of the streams while they are merged.
type auditSource struct {
	messages chan auditMessage
	head     *auditMessage // received, not visited
	idle     bool          // the stream has no more for now
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

// merge visits what the sources have, the earlier one first.
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

// readStream calls visit with each message of a stream since a moment. A stream
// without any has one call without data.
func (b *Bus) readStream(ctx context.Context, stream, subject string, since time.Time, follow bool, visit func(data []byte, at time.Time, last bool) error) error {
	from := jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverAllPolicy}
	if !since.IsZero() {
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
		if err := visit(nil, time.Time{}, true); err != nil || !follow {
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
		if err := visit(msg.Data(), meta.Timestamp, last); err != nil || last && !follow {
			return err
		}
	}
}
