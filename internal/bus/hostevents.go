package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// HostEventQuery selects host events, oldest first. Zero fields select all.
type HostEventQuery struct {
	Host            procfleet.Host
	Namespace, Kind string
	// Since excludes events that were received earlier.
	Since time.Time
	// After selects the events after this sequence, whose own event may be gone.
	// A sequence beyond the stream's last one belongs to a lost stream: reading
	// then starts at the beginning.
	After uint64
	// Newest selects the last events instead and ignores After.
	Newest bool
	Limit  int // maximum number of events; at least 1
}

// HostEventPage is a page of host events, oldest first. Next is the After of the
// next page, and More reports whether that page already has messages.
type HostEventPage struct {
	Events []procfleet.HostEvent
	Next   uint64
	More   bool
	// Refused counts the unverified messages on the page by [fleetkey.Reason].
	Refused map[string]int
}

const (
	// eventWindow is the number of messages that newest reads per window,
	// maxInspected the maximum number of messages read for a page, since a filter may
	// exclude nearly all of them. eventFetch messages are fetched at a time.
	eventWindow  = 1000
	maxInspected = 10 * eventWindow
	eventFetch   = 200
	// eventPageBytes limits the total size of the messages on a page.
	eventPageBytes = 8 << 20
	// eventWait is how long to wait for messages that the stream holds.
	eventWait = 5 * time.Second
	// eventReaders is the maximum number of concurrent page reads.
	eventReaders = 8
	// maxEventMessage is the maximum size of an event in bytes, without headers.
	maxEventMessage = 64 << 10
	eventHeaders    = 4 << 10
)

// HostEvents reads a page. It inspects at most 10,000 messages: with Newest it
// does not find older events, and otherwise a page may be empty although More is
// set. The error wraps [ErrUnavailable] if it is temporary.
func (b *Bus) HostEvents(ctx context.Context, q HostEventQuery) (HostEventPage, error) {
	page, err := b.hostEvents(ctx, q)
	if err != nil {
		return HostEventPage{}, publishError("read events of hosts", err)
	}
	return page, nil
}

func (b *Bus) hostEvents(ctx context.Context, q HostEventQuery) (HostEventPage, error) {
	select {
	case b.eventReaders <- struct{}{}:
		defer func() { <-b.eventReaders }()
	case <-ctx.Done():
		return HostEventPage{}, context.Cause(ctx)
	}
	stream, err := b.js.Stream(ctx, StreamHostEvents)
	if err != nil {
		return HostEventPage{}, err
	}
	r := eventReader{js: b.js, keys: b.keys(), q: q, state: stream.CachedInfo().State, refused: map[string]int{}}
	page, err := r.page(ctx)
	page.Refused = r.refused
	return page, err
}

// eventReader reads one page of the stream, which had the given state at the start.
type eventReader struct {
	js      jetstream.JetStream
	keys    *fleetkey.Ring
	q       HostEventQuery
	state   jetstream.StreamState
	refused map[string]int
}

func (r *eventReader) page(ctx context.Context) (HostEventPage, error) {
	switch {
	case r.q.Newest:
		return r.newest(ctx)
	case r.q.After > r.state.LastSeq:
		r.q.After = 0
	case r.q.After > 0:
		return r.onwards(ctx, jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: r.q.After + 1})
	case !r.q.Since.IsZero():
		return r.onwards(ctx, jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &r.q.Since})
	}
	return r.onwards(ctx, jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
}

// onwards reads forward from a start position.
func (r *eventReader) onwards(ctx context.Context, from jetstream.ConsumerConfig) (HostEventPage, error) {
	page := HostEventPage{Next: r.state.LastSeq}
	if r.state.Msgs == 0 || r.q.After == r.state.LastSeq {
		return page, nil
	}
	inspected, bytes := 0, 0
	err := r.read(ctx, from, func(m eventMessage) bool {
		inspected++
		if m.event != nil {
			page.Events = append(page.Events, *m.event)
			bytes += m.bytes
		}
		if inspected == maxInspected || len(page.Events) == r.q.Limit || bytes >= eventPageBytes {
			page.Next, page.More = m.sequence, m.sequence < r.state.LastSeq
			return false
		}
		page.Next = max(page.Next, m.sequence)
		return true
	})
	return page, err
}

// newest reads windows of messages from the end of the stream backwards until the
// page is full.
func (r *eventReader) newest(ctx context.Context) (HostEventPage, error) {
	page := HostEventPage{Next: r.state.LastSeq}
	first := r.state.FirstSeq
	if r.state.LastSeq > maxInspected {
		first = max(first, r.state.LastSeq-maxInspected+1)
	}
	bytes, full := 0, false
	for end := r.state.LastSeq; r.state.Msgs > 0 && end >= first && len(page.Events) < r.q.Limit && !full; {
		begin := first
		if end-first >= eventWindow {
			begin = end - eventWindow + 1
		}
		var window []eventMessage // newest selected events of the window that fit the page
		from := jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: begin}
		err := r.read(ctx, from, func(m eventMessage) bool {
			if m.event != nil && m.sequence <= end {
				window, bytes = append(window, m), bytes+m.bytes
			}
			for len(window) > r.q.Limit || bytes > eventPageBytes {
				bytes -= window[0].bytes
				window[0].event, window, full = nil, window[1:], true
			}
			return m.sequence < end
		})
		if err != nil {
			return HostEventPage{}, err
		}
		events := make([]procfleet.HostEvent, 0, len(window)+len(page.Events))
		for _, m := range window {
			events = append(events, *m.event)
		}
		page.Events = append(events, page.Events...)
		end = begin - 1
	}
	page.Events = page.Events[max(0, len(page.Events)-r.q.Limit):]
	return page, nil
}

// eventMessage is an inspected message.
type eventMessage struct {
	sequence uint64
	bytes    int
	event    *procfleet.HostEvent // nil if the message is not selected or not a valid event
}

// read calls visit with every message from a start position on, until visit
// returns false or no message is left.
func (r *eventReader) read(ctx context.Context, from jetstream.ConsumerConfig, visit func(eventMessage) bool) error {
	from.AckPolicy, from.MemoryStorage, from.Replicas, from.InactiveThreshold = jetstream.AckNonePolicy, true, 1, time.Minute
	if !r.q.Host.IsZero() {
		from.FilterSubject = hostEventSubject(r.q.Host.Cloud)
	}
	consumer, err := r.js.CreateConsumer(ctx, StreamHostEvents, from)
	if err != nil {
		return err
	}
	defer r.deleteConsumer(ctx, consumer.CachedInfo().Name)
	for pending := consumer.CachedInfo().NumPending; pending > 0; {
		batch, err := consumer.Fetch(int(min(pending, eventFetch)), jetstream.FetchMaxWait(eventWait))
		if err != nil {
			return err
		}
		more, received := true, false
		for msg := range batch.Messages() {
			received = true
			if !more {
				continue // drain the batch
			}
			meta, err := msg.Metadata()
			if err != nil {
				return err
			}
			more, pending = visit(eventMessage{meta.Sequence.Stream, len(msg.Data()), r.wanted(msg, meta)}), meta.NumPending
		}
		if err := batch.Error(); err != nil && !errors.Is(err, jetstream.ErrNoMessages) {
			return err
		}
		if !more || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !received { // otherwise missing messages would count as read
			return fmt.Errorf("%d messages of the stream not received within %s: %w", pending, eventWait, context.DeadlineExceeded)
		}
	}
	return nil
}

// deleteConsumer deletes a consumer without waiting for its expiry after one minute.
func (r *eventReader) deleteConsumer(ctx context.Context, consumer string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.js.DeleteConsumer(ctx, StreamHostEvents, consumer)
}

// wanted returns the event in a message, or nil if the message is not selected or
// is not a valid event.
func (r *eventReader) wanted(msg jetstream.Msg, meta *jetstream.MsgMetadata) *procfleet.HostEvent {
	e, _, err := DecodeHostEvent(msg.Data(), msg.Subject())
	if err != nil {
		return nil // not a valid event
	}
	if err := r.keys.Verify(msg.Headers(), e.Host.String(), &fleetkey.Message{Purpose: agentproto.TypeEvent, Body: msg.Data()}); err != nil {
		r.refused[fleetkey.Reason(err)]++
		return nil
	}
	if r.keys.VerifyAgentID(msg.Headers(), e.Host.String(), e.AgentID) != nil {
		e.AgentID = ""
	}
	e.Sequence, e.ReceivedAt = meta.Sequence.Stream, meta.Timestamp.UTC()
	q := &r.q
	if !q.Host.IsZero() && e.Host != q.Host || q.Namespace != "" && e.Namespace != q.Namespace || q.Kind != "" && e.Kind != q.Kind {
		return nil
	}
	if e.ReceivedAt.Before(q.Since) {
		return nil
	}
	return &e
}

// maxEventText is the maximum size of Kind, AgentID and Instance in bytes.
const maxEventText = 128

// DecodeHostEvent decodes a message of an agent or worker on an event subject. m
// contains the parts that only workers need. It never panics.
func DecodeHostEvent(data []byte, subject string) (e procfleet.HostEvent, m agentproto.Event, err error) {
	if len(data) > maxEventMessage {
		return e, m, fmt.Errorf("bus: event of %d bytes is over the limit of %d", len(data), maxEventMessage)
	}
	if err := agentproto.Decode(data, agentproto.TypeEvent, &m); err != nil {
		return e, m, err
	}
	host, err := procfleet.ParseHost(m.Host)
	if err != nil {
		return e, m, fmt.Errorf("bus: event: %w", err)
	}
	// NATS permissions restrict an agent to the subjects of its own cloud area.
	if subject[strings.LastIndexByte(subject, '.')+1:] != strconv.FormatInt(int64(host.Cloud), 10) {
		return e, m, fmt.Errorf("bus: event of host %s was sent on subject %.80s of another cloud area", host, subject)
	}
	texts := []string{m.Kind, m.AgentID, m.Instance}
	keys := []string{m.Key, m.Namespace, m.Name, m.ProcName}
	tooLong := func(limit int) func(string) bool { return func(s string) bool { return len(s) > limit } }
	if m.Kind == "" || slices.ContainsFunc(texts, tooLong(maxEventText)) || slices.ContainsFunc(keys, tooLong(procfleet.MaxKey)) {
		return e, m, fmt.Errorf("bus: event of host %s has no kind, or a field that is too long", host)
	}
	if len(m.Message) > procfleet.MaxMessage {
		m.Message = strings.ToValidUTF8(m.Message[:procfleet.MaxMessage], "")
	}
	return procfleet.HostEvent{
		At: m.At.UTC(), Host: host, AgentID: m.AgentID, Instance: m.Instance, Kind: m.Kind,
		Key: m.Key, Namespace: m.Namespace, Name: m.Name, ProcName: m.ProcName, PID: m.PID,
		Message: m.Message, Details: m.Details,
	}, m, nil
}

// PublishedEvent is an event to publish, with the outcome.
type PublishedEvent struct {
	ID     string // id of the event; the stream drops duplicates
	Host   procfleet.Host
	Header nats.Header
	Body   []byte
	// Err is nil once the stream has acknowledged the event. It wraps [ErrFull] or
	// [ErrUnavailable] if a retry may succeed.
	Err error
}

// PublishHostEvents publishes events that the caller has verified, with the
// agents' signatures. It waits until each event is acknowledged or has its Err.
func (b *Bus) PublishHostEvents(ctx context.Context, events []PublishedEvent) {
	futures := make([]jetstream.PubAckFuture, len(events))
	for i := range events {
		futures[i], events[i].Err = b.js.PublishMsgAsync(events[i].message(), jetstream.WithStallWait(stallWait))
	}
	for i := range events {
		e := &events[i]
		if e.Err == nil {
			_, e.Err = b.acknowledged(ctx, futures[i])
		}
		if e.Err != nil {
			e.Err = publishError("publish event of host "+e.Host.String(), e.Err)
		}
	}
}

// EmitHostEvent publishes an event without waiting: the event may be lost.
func (b *Bus) EmitHostEvent(e PublishedEvent) error { return b.js.Conn().PublishMsg(e.message()) }

// message omits headers that would control the NATS server.
func (e *PublishedEvent) message() *nats.Msg {
	msg := &nats.Msg{Subject: hostEventSubject(e.Host.Cloud), Header: make(nats.Header, len(e.Header)+1), Data: e.Body}
	for name, values := range e.Header {
		if !strings.HasPrefix(strings.ToLower(name), "nats-") {
			msg.Header[name] = values
		}
	}
	msg.Header.Set(jetstream.MsgIDHeader, e.ID)
	return msg
}
