// Package hosts handles the unsolicited messages of agents: announcements of presence,
// reports on processes, settings requests and events. Each kind has an inbox.
package hosts

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/metrics"
)

// Store has the calls to a task store that this package uses.
type Store interface {
	Announce(ctx context.Context, as []taskstore.Announcement) error
}

// Catalog has the calls to a catalog that this package uses.
type Catalog interface {
	Report(ctx context.Context, reports []catalog.Report) error
	FreezesOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.Freeze, error)
	GroupsOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.HostGroups, error)
}

// Config holds the dependencies and settings of the inboxes.
type Config struct {
	Link    *agentlink.Link
	Claims  *agentlink.IDClaims
	Store   Store
	Catalog Catalog
	Log     logrus.FieldLogger // parent logger; Inboxes adds a component like "worker.presence"
	// PresenceLinger and ReportLinger are how long a batch waits for more messages
	// after its first.
	PresenceLinger, ReportLinger time.Duration
}

// Inboxes returns one inbox for each kind of message; the caller runs them.
func Inboxes(cfg Config) []*agentlink.Inbox {
	m := cfg.Link.Metrics
	of := func(component, messageType string, counter metrics.Counter) receiver {
		log := cfg.Log.WithField("component", "worker."+component)
		return receiver{link: cfg.Link, log: log, messageType: messageType, counter: counter}
	}
	p := &presence{receiver: of("presence", agentproto.TypePresence, m.Announcements), store: cfg.Store, claims: cfg.Claims}
	r := &reports{of("reports", agentproto.TypeProcesses, m.Reports), cfg.Catalog}
	s := &settings{of("settings", agentproto.TypeSettingsRequest, m.Settings), cfg.Catalog}
	e := newEvents(of("events", agentproto.TypeEvent, m.Events))
	return []*agentlink.Inbox{p.inbox(cfg.PresenceLinger), r.inbox(cfg.ReportLinger), s.inbox(), e.inbox()}
}

// receiver has the common parts of all kinds of messages.
type receiver struct {
	link        *agentlink.Link
	log         logrus.FieldLogger
	messageType string
	counter     metrics.Counter // messages by outcome

	failing bool // the last batch could not be processed
}

// verified reports whether a message was decoded, with the given error, and is from the
// agent of host. It logs and counts all other messages.
func (r *receiver) verified(msg *nats.Msg, host procfleet.Host, err error) bool {
	if err != nil {
		r.log.WithError(err).WithField("subject", msg.Subject).Warn("agent message dropped")
	} else {
		err = r.link.Auth.Verify(msg.Header, host, &fleetkey.Message{Purpose: r.messageType, Body: msg.Data})
	}
	if err != nil {
		r.counter.Add(1, metrics.Dropped)
	}
	return err == nil
}

// write stores a batch of n messages with the given call to the store. It counts the
// outcome, logs the first of consecutive failures, and reports success.
func (r *receiver) write(ctx context.Context, n int, call func(context.Context) error) bool {
	ctx, cancel := r.link.Calls.WithTimeout(ctx)
	defer cancel()
	err := call(ctx)
	if err != nil && !r.failing {
		r.log.WithError(err).WithField("messages", n).Warn("agent messages not stored, agents will repeat them")
	}
	if r.failing = err != nil; r.failing {
		r.counter.Add(n, metrics.NotStored)
		return false
	}
	r.counter.Add(n, metrics.Stored)
	return true
}

// overflowed counts a message that exceeds the limits of its inbox.
func (r *receiver) overflowed(*nats.Msg) { r.counter.Add(1, metrics.Overflowed) }

// events verifies the events that agents send, publishes them to the stream of host
// events, and sends receipts once the stream has stored them.
type events struct {
	receiver
	*agentlink.Intake
}

func newEvents(r receiver) *events {
	h := &events{receiver: r, Intake: &agentlink.Intake{Name: "events", Link: r.link, Log: r.log}}
	h.Open, h.Store = h.open, h.publish
	return h
}

// inbox returns the inbox of events, which have up to 64 KiB and typically 500 bytes.
func (h *events) inbox() *agentlink.Inbox {
	return &agentlink.Inbox{
		Link: h.Link, Subject: agentproto.EventsAll, Name: h.Name, Log: h.Log,
		Limit: 8192, LimitBytes: 16 << 20, Batch: 500, BatchBytes: 4 << 20,
		Take: h.Take, Overflow: h.Overflow, Refuses: h.Refuses,
	}
}

// open decodes and verifies a message. It returns nil if the message is invalid.
func (h *events) open(msg *nats.Msg) *agentlink.Request {
	e, m, err := bus.DecodeHostEvent(msg.Data, msg.Subject)
	if err == nil && (m.ID == "" || len(m.ID) > agentlink.MaxName) {
		err = errors.New("event id is missing or too long")
	}
	if !h.verified(msg, e.Host, err) {
		return nil
	}
	return &agentlink.Request{Msg: msg, ID: m.ID, Host: e.Host}
}

// publish publishes a batch and sends a receipt for each event that the stream stores.
// The agent's body and signature stay unchanged, so that readers can verify them.
func (h *events) publish(ctx context.Context, requests []*agentlink.Request) (left []*agentlink.Request, err error) {
	ctx, cancel := h.Link.ReceiptTimeout(ctx)
	defer cancel()
	events := make([]bus.PublishedEvent, len(requests))
	for i, r := range requests {
		events[i] = bus.PublishedEvent{ID: r.ID, Host: r.Host, Header: r.Msg.Header, Body: r.Msg.Data}
	}
	h.link.Bus.PublishHostEvents(ctx, events)
	for i, r := range requests {
		switch e := &events[i]; {
		case e.Err == nil:
			h.counter.Add(1, metrics.Stored)
			h.Reply(r, &agentproto.Receipt{Event: r.ID})
		case errors.Is(e.Err, bus.ErrUnavailable), errors.Is(e.Err, bus.ErrFull):
			left, err = append(left, r), e.Err
		default:
			h.Log.WithError(e.Err).WithField("host", r.Host.String()).Error("event refused by the stream")
			h.counter.Add(1, metrics.Refused)
			h.Reply(r, &agentproto.Receipt{Event: r.ID, RetryAfterMS: agentlink.RetryRefused.Milliseconds()})
		}
	}
	h.counter.Add(len(left), metrics.NotStored)
	return left, err
}

// inBatch returns a function that collects the contents of messages with add and calls
// handOn with them, unless there are none.
func inBatch[T any](add func([]T, *nats.Msg) []T, handOn func(context.Context, []T)) func(context.Context, []*nats.Msg) {
	return func(ctx context.Context, msgs []*nats.Msg) {
		var batch []T
		for _, msg := range msgs {
			batch = add(batch, msg)
		}
		if len(batch) > 0 {
			handOn(ctx, batch)
		}
	}
}
