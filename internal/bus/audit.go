package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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

// AuditPlace returns [StreamAudit] as a place of audit records.
func (b *Bus) AuditPlace() audit.Place { return auditPlace{b} }

type auditPlace struct{ bus *Bus }

func (auditPlace) Name() string { return "stream" }

// Keep publishes all records at once. A repeat within two minutes is dropped
// by the stream.
func (p auditPlace) Keep(ctx context.Context, lines []audit.Line, _ bool) error {
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

// ReadAudit calls visit with each record of [StreamAudit] that was received
// since a moment, or of all if that is zero, as JSON without the end of the
// line. It ends with the last one there is, or, if it follows, with ctx, and
// when visit fails.
func (b *Bus) ReadAudit(ctx context.Context, since time.Time, follow bool, visit func(record []byte) error) error {
	if err := b.readAudit(ctx, since, follow, visit); err != nil {
		return publishError("read the audit log", err)
	}
	return nil
}

func (b *Bus) readAudit(ctx context.Context, since time.Time, follow bool, visit func(record []byte) error) error {
	from := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy}
	if !since.IsZero() {
		from.DeliverPolicy, from.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	consumer, err := b.js.OrderedConsumer(ctx, StreamAudit, from)
	if err != nil {
		return err
	}
	info, err := consumer.Info(ctx)
	if err != nil || info.NumPending == 0 && !follow {
		return err
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
		if err := visit(msg.Data()); err != nil {
			return err
		}
		if meta, err := msg.Metadata(); err != nil || meta.NumPending == 0 && !follow {
			return err
		}
	}
}
