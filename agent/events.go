package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
)

const (
	// eventLimit is the maximum number of queued events; if it is exceeded, the oldest
	// events are dropped.
	eventLimit = 1000

	// eventGap is the minimum time between two events of one topic. Repetitions within the
	// gap are counted and sent as one event at its end.
	eventGap = time.Minute

	// eventBytes is the maximum size of a sent event; a larger event is sent without details.
	eventBytes = 64 << 10
)

// Keys that the agent adds to [agentproto.Event.Details].
const (
	detailCount = "count"       // number of events that a summary replaces
	detailSince = "since"       // time of the first of these events
	detailLost  = "lost_before" // number of events that were dropped from a full queue
)

// events sends the agent's events to workers. Events are queued in memory until a worker
// acknowledges them, and are lost with the agent process.
type events struct {
	*requester

	added   chan struct{} // holds a token when an event or a gap was added
	retries *backOff

	mu      sync.Mutex
	waiting []agentproto.Event // queue, the next event to send first
	recent  map[topic]*repeats
	delayed int // number of refused events that wait for a pause and are not in waiting
	lost    int // number of events dropped since the last acknowledged event
}

// topic groups events: further events of a topic within [eventGap] are repetitions. Events
// about the host, which have no key, are distinguished by their message.
type topic struct{ kind, key, message string }

func topicOf(e agentproto.Event) topic {
	if e.Key == "" {
		return topic{kind: e.Kind, message: e.Message}
	}
	return topic{kind: e.Kind, key: e.Key}
}

// repeats counts the events of a topic since an event of the topic was queued.
type repeats struct {
	end   time.Time // end of the gap, by the local monotonic clock
	count int
	since time.Time // time of the first repetition
	last  agentproto.Event
}

func newEvents(workers *requester) *events {
	return &events{requester: workers, added: make(chan struct{}, 1), retries: newBackOff(), recent: map[topic]*repeats{}}
}

// emit queues an event after setting its header, host and time. It does not block.
func (e *events) emit(event agentproto.Event) {
	event.Header = newHeader(agentproto.TypeEvent)
	event.Host, event.AgentID, event.Instance = e.host, e.agentID, e.instance
	event.At = e.clock.now().UTC()
	event.Details = maps.Clone(event.Details) // the caller may change it afterwards
	e.metrics.emitted(event.Kind)
	e.mu.Lock()
	defer e.mu.Unlock()
	defer signal(e.added)
	about := topicOf(event)
	if r, ok := e.recent[about]; ok {
		if r.count == 0 {
			r.since = event.At
		}
		r.count++
		r.last = event
		return
	}
	e.recent[about] = &repeats{end: time.Now().Add(eventGap)}
	e.enqueue(event)
}

// enqueue queues an event. The caller holds e.mu.
func (e *events) enqueue(event agentproto.Event) {
	e.waiting = append(e.waiting, event)
	if drop := len(e.waiting) - eventLimit; drop > 0 {
		if e.lost == 0 {
			e.log.Warn("event queue full, oldest events dropped")
		}
		e.lost += drop
		e.metrics.dropped(drop)
		e.waiting = slices.Clone(e.waiting[drop:])
	}
}

// settle queues the summaries of the gaps that have ended at now, and returns the end of
// the next gap; zero = none.
func (e *events) settle(now time.Time) (next time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for about, r := range e.recent {
		switch {
		case now.Before(r.end):
		case r.count == 0:
			delete(e.recent, about)
			continue
		default:
			e.enqueue(r.summary())
			*r = repeats{end: now.Add(eventGap)}
		}
		if next.IsZero() || r.end.Before(next) {
			next = r.end
		}
	}
	return next
}

// summary returns the latest event of the topic with the number of repetitions.
func (r *repeats) summary() agentproto.Event {
	if r.count > 1 {
		if r.last.Details == nil {
			r.last.Details = map[string]any{}
		}
		r.last.Details[detailCount], r.last.Details[detailSince] = r.count, r.since
	}
	return r.last
}

func (e *events) pending() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting)
}

// run sends the queued events until ctx ends.
func (e *events) run(ctx context.Context) {
	for ctx.Err() == nil {
		next := e.settle(time.Now())
		if e.pending() > 0 {
			if e.retries.wait(ctx) {
				_ = e.sendNext(ctx) // sendNext logs its error
			}
			continue
		}
		var gapEnds <-chan time.Time
		if !next.IsZero() {
			gapEnds = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
		case <-e.added:
		case <-gapEnds:
		}
	}
}

// flush sends the queued events and summaries. Events that remain when ctx ends, or when no
// worker responds, are lost. Call it only after run has returned.
func (e *events) flush(ctx context.Context) {
	e.settle(time.Now().Add(eventGap))
	e.retries.end() // a pause may outlast ctx
	for e.pending() > 0 && e.retries.wait(ctx) {
		if errors.Is(e.sendNext(ctx), nats.ErrNoResponders) {
			return
		}
	}
}

// sendNext sends the oldest event and removes it from the queue if a worker acknowledges
// it. It returns the error of the request.
func (e *events) sendNext(ctx context.Context) error {
	event, lost := e.oldest()
	sent, err := bounded(event, lost)
	if err != nil {
		e.log.WithError(err).WithField("kind", event.Kind).Error("event dropped: encoding failed")
		e.remove(event.ID, 0)
		return nil
	}
	var receipt agentproto.Receipt
	_, err = e.request(ctx, agentproto.EventSubject(e.cloud), sent, agentproto.TypeReceipt, &receipt)
	pause := receipt.RetryAfter()
	switch {
	case err != nil:
		e.backOff(ctx, err)
		return err
	case pause > 0 && receipt.Event == event.ID:
		e.log.WithFields(logrus.Fields{"kind": event.Kind, "retry_after": pause}).Warn("event rejected by the event stream, retrying later")
		e.retries.succeeded()
		e.delay(event, pause)
	case pause > 0:
		e.log.WithField("retry_after", pause).Debug("workers busy, events queued")
		e.retries.busy(pause)
	case receipt.Event != event.ID:
		e.backOff(ctx, fmt.Errorf("the receipt is for event %q, not %q", receipt.Event, event.ID))
	default:
		e.remove(event.ID, lost)
		if e.retries.succeeded() {
			e.log.WithField("dropped", lost).Info("event acknowledgments resumed")
		}
	}
	return nil
}

func (e *events) oldest() (event agentproto.Event, lost int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.waiting[0], e.lost
}

// delay removes an event from the queue and appends it again after a pause.
func (e *events) delay(event agentproto.Event, pause time.Duration) {
	e.remove(event.ID, 0)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.delayed == eventLimit {
		e.lost++
		e.metrics.dropped(1)
		return
	}
	e.delayed++
	time.AfterFunc(pause, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.delayed--
		e.enqueue(event)
		signal(e.added)
	})
}

// remove removes an event from the queue, unless it was dropped meanwhile. It subtracts
// lost, the number of dropped events that this event has reported.
func (e *events) remove(id string, lost int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost -= lost
	if len(e.waiting) > 0 && e.waiting[0].ID == id {
		e.waiting = e.waiting[1:]
	}
}

// bounded returns the event to send, with the number of events dropped before it. It omits
// details that are too large or cannot be encoded. A repeated request has the same event id.
func bounded(event agentproto.Event, lost int) (*agentproto.Event, error) {
	if lost > 0 {
		event.Details = maps.Clone(event.Details)
		if event.Details == nil {
			event.Details = map[string]any{}
		}
		event.Details[detailLost] = lost
	}
	data, err := agentproto.Encode(&event)
	if err != nil || len(data) > eventBytes {
		event.Details = nil
		data, err = agentproto.Encode(&event)
	}
	if err == nil && len(data) > eventBytes {
		err = fmt.Errorf("the event has %d bytes, at most %d are sent", len(data), eventBytes)
	}
	return &event, err
}

// backOff logs a failure and begins a pause.
func (e *events) backOff(ctx context.Context, cause error) {
	if ctx.Err() != nil {
		return
	}
	entry := e.log.WithError(cause).WithField("waiting", e.pending())
	if e.retries.failures == 0 {
		entry.Warn("events not acknowledged, retrying")
	} else {
		entry.Debug("events still not acknowledged")
	}
	e.retries.failed()
}
