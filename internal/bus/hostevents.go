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

// HostEventQuery selects agent events, the oldest first. Zero fields select all.
type HostEventQuery struct {
	Host            procfleet.Host
	Namespace, Kind string
	// Since leaves out what was received before.
	Since time.Time
	// After continues behind the event of this sequence, which need not exist any
	// longer. A sequence beyond the last one is of a lost stream: reading starts
	// at the beginning.
	After uint64
	// Newest reads the last events instead and ignores After.
	Newest bool
	Limit  int // of events; at least 1
}

// HostEventPage is a page of agent events, the oldest first. Next is the After
// of the next page; More says that there is one already.
type HostEventPage struct {
	Events []procfleet.HostEvent
	Next   uint64
	More   bool
	// Refused counts unverified messages on the page, by [fleetkey.Reason].
	Refused map[string]int
}

const (
	// eventWindow is how many messages are looked at together, and eventLook
	// how many for one page: a filter may leave out nearly all of them.
	// eventFetch of them are in memory at a time.
	eventWindow = 1000
	eventLook   = 10 * eventWindow
	eventFetch  = 200
	// eventPageBytes bounds the messages of which a page is made.
	eventPageBytes = 8 << 20
	// eventWait is how long messages that the stream has may take to come.
	eventWait = 5 * time.Second
	// eventReaders is how many pages are read at a time.
	eventReaders = 8
	// maxEventMessage bounds one event in bytes, without its headers.
	maxEventMessage = 64 << 10
	eventHeaders    = 4 << 10
)

// HostEvents reads a page. It looks at no more than 10,000 events: of the
// newest, those before are not found, and a page that goes on may be empty and
// say that there is more. The error wraps [ErrUnavailable] if it may pass.
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

// eventReader reads one page of a stream that was in the given state.
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

// onwards reads forward from a position.
func (r *eventReader) onwards(ctx context.Context, from jetstream.ConsumerConfig) (HostEventPage, error) {
	page := HostEventPage{Next: r.state.LastSeq}
	if r.state.Msgs == 0 || r.q.After == r.state.LastSeq {
		return page, nil
	}
	looked, bytes := 0, 0
	err := r.read(ctx, from, func(m eventMessage) bool {
		looked++
		if m.event != nil {
			page.Events = append(page.Events, *m.event)
			bytes += m.bytes
		}
		if looked == eventLook || len(page.Events) == r.q.Limit || bytes >= eventPageBytes {
			page.Next, page.More = m.sequence, m.sequence < r.state.LastSeq
			return false
		}
		page.Next = max(page.Next, m.sequence)
		return true
	})
	return page, err
}

// newest reads windows from the end towards the beginning until there are
// enough.
func (r *eventReader) newest(ctx context.Context) (HostEventPage, error) {
	page := HostEventPage{Next: r.state.LastSeq}
	first := r.state.FirstSeq
	if r.state.LastSeq > eventLook {
		first = max(first, r.state.LastSeq-eventLook+1)
	}
	bytes, full := 0, false
	for end := r.state.LastSeq; r.state.Msgs > 0 && end >= first && len(page.Events) < r.q.Limit && !full; {
		begin := first
		if end-first >= eventWindow {
			begin = end - eventWindow + 1
		}
		var window []eventMessage // at most the newest events that fit the page
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

// eventMessage is a message that was looked at.
type eventMessage struct {
	sequence uint64
	bytes    int
	event    *procfleet.HostEvent // nil if it is not selected, or no event
}

// read calls visit with every message from a position on. It ends when visit
// returns false, or with the last message.
func (r *eventReader) read(ctx context.Context, from jetstream.ConsumerConfig, visit func(eventMessage) bool) error {
	from.AckPolicy, from.MemoryStorage, from.Replicas, from.InactiveThreshold = jetstream.AckNonePolicy, true, 1, time.Minute
	if !r.q.Host.IsZero() {
		// Agents published to the former themselves until a release ago.
		from.FilterSubjects = []string{agentproto.EventSubject(int64(r.q.Host.Cloud)), hostEventSubject(r.q.Host.Cloud)}
	}
	consumer, err := r.js.CreateConsumer(ctx, StreamHostEvents, from)
	if err != nil {
		return err
	}
	defer r.forget(ctx, consumer.CachedInfo().Name)
	for pending := consumer.CachedInfo().NumPending; pending > 0; {
		batch, err := consumer.Fetch(int(min(pending, eventFetch)), jetstream.FetchMaxWait(eventWait))
		if err != nil {
			return err
		}
		more, came := true, false
		for msg := range batch.Messages() {
			came = true
			if !more {
				continue // until the batch is at its end
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
		if !came { // and missing messages must not count as read
			return fmt.Errorf("%d messages of the stream not received within %s: %w", pending, eventWait, context.DeadlineExceeded)
		}
	}
	return nil
}

// forget removes a consumer, which otherwise ends by itself in a minute.
func (r *eventReader) forget(ctx context.Context, consumer string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.js.DeleteConsumer(ctx, StreamHostEvents, consumer)
}

// wanted returns the event of a message; nil if it is not selected, or no event.
func (r *eventReader) wanted(msg jetstream.Msg, meta *jetstream.MsgMetadata) *procfleet.HostEvent {
	e, _, err := DecodeHostEvent(msg.Data(), msg.Subject())
	if err != nil {
		return nil // not written by an agent
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

// maxEventWord bounds a word of an event in bytes.
const maxEventWord = 128

// DecodeHostEvent reads a message that an agent or a worker sent to a subject of
// events, and the parts of it that only workers need. It never panics.
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
	// The subject is what NATS permissions can enforce.
	if subject[strings.LastIndexByte(subject, '.')+1:] != strconv.FormatInt(int64(host.Cloud), 10) {
		return e, m, fmt.Errorf("bus: event of host %s came on subject %.80s of another cloud area", host, subject)
	}
	words := []string{m.Kind, m.AgentID, m.Instance}
	keys := []string{m.Key, m.Namespace, m.Name, m.ProcName}
	tooLong := func(limit int) func(string) bool { return func(s string) bool { return len(s) > limit } }
	if m.Kind == "" || slices.ContainsFunc(words, tooLong(maxEventWord)) || slices.ContainsFunc(keys, tooLong(procfleet.MaxKey)) {
		return e, m, fmt.Errorf("bus: event of host %s has no kind, or a word that is too long", host)
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

// PublishedEvent is an event to publish, and whether the stream has it.
type PublishedEvent struct {
	ID     string // of the event: the stream drops repeats
	Host   procfleet.Host
	Header nats.Header
	Body   []byte
	// Err is nil when the stream has the event. It wraps [ErrFull] or [ErrUnavailable]
	// if a repeat may succeed.
	Err error
}

// PublishHostEvents publishes events that the caller has verified, with the
// agents' signatures, and returns when the stream acknowledged each or Err says
// why not.
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

// EmitHostEvent publishes an event and does not wait: it may be lost.
func (b *Bus) EmitHostEvent(e PublishedEvent) error { return b.js.Conn().PublishMsg(e.message()) }

// message leaves out the headers that NATS would obey.
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
