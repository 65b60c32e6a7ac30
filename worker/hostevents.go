package worker

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// hostEvents publishes the events that agents send to the stream of host events,
// once they are verified, and replies to the agents when the stream has them.
type hostEvents struct {
	*intake
	bus    *bus.Bus
	timing *Timing
}

func newHostEvents(h hostEvents) *hostEvents {
	h.name = "events"
	h.open, h.keep = h.openEvent, h.publish
	return &h
}

// inbox is where events come in, of up to 64 KiB and usually some 500 bytes.
func (h *hostEvents) inbox() *inbox {
	return &inbox{
		conn: h.conn, subject: agentproto.EventsAll, name: h.name, log: h.log, metrics: h.metrics,
		room: 8192, roomBytes: 16 << 20, batch: 500, batchBytes: 4 << 20,
		take: h.take, overflow: h.overflow, refuses: h.gate.refuses,
	}
}

// openEvent decodes and verifies a message.
func (h *hostEvents) openEvent(msg *nats.Msg) *request {
	e, m, err := bus.DecodeHostEvent(msg.Data, msg.Subject)
	if err == nil && (m.ID == "" || len(m.ID) > maxWord) {
		err = errors.New("event without an id, or with one that is too long")
	}
	if err != nil {
		h.log.WithError(err).WithField("subject", msg.Subject).Warn("event of host dropped")
		h.metrics.events(1, eventsBad)
		return nil
	}
	if h.believer.believe(msg.Header, e.Host, &fleetkey.Message{Purpose: agentproto.TypeEvent, Body: msg.Data}) != nil {
		h.metrics.events(1, eventsBad)
		return nil
	}
	return &request{msg: msg, kind: agentproto.TypeEvent, id: m.ID, host: e.Host, receipt: m.Receipt}
}

// publish has the stream acknowledge a batch, and replies to what it has. The
// body and the signature stay the agent's, so that readers can verify them too.
func (h *hostEvents) publish(ctx context.Context, requests []*request) (left []*request, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.timing.beforeAgentsRepeat())
	defer cancel()
	events := make([]bus.PublishedEvent, len(requests))
	for i, r := range requests {
		events[i] = bus.PublishedEvent{ID: r.id, Host: r.host, Header: r.msg.Header, Body: r.msg.Data}
	}
	h.bus.PublishHostEvents(ctx, events)
	for i, r := range requests {
		switch e := &events[i]; {
		case e.Err == nil:
			h.metrics.events(1, eventsStored)
			h.reply(r, &agentproto.Receipt{Event: r.id})
		case errors.Is(e.Err, bus.ErrUnavailable), errors.Is(e.Err, bus.ErrFull):
			left, err = append(left, r), e.Err
		default:
			h.log.WithError(e.Err).WithField("host", r.host.String()).Error("event refused by the stream")
			h.metrics.events(1, eventsRefused)
			h.reply(r, &agentproto.Receipt{Event: r.id, RetryAfterMS: retryRefused.Milliseconds()})
		}
	}
	h.metrics.events(len(left), eventsLost)
	return left, err
}
