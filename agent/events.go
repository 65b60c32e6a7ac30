package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
)

const (
	// eventLimit is how many events wait for a receipt; beyond it the oldest are
	// dropped.
	eventLimit = 1000

	// eventGap is the least time between two events of one kind about one
	// process. What happens meanwhile is counted and told at its end.
	eventGap = time.Minute

	// eventBytes bounds one event on the wire; larger ones lose their details.
	eventBytes = 64 << 10
)

// Figures that the agent adds to [agentproto.Event.Details].
const (
	detailCount = "count"       // how many events of the kind this one stands for
	detailSince = "since"       // when the first of them was
	detailLost  = "lost_before" // events that were dropped because too many waited
)

// events reports to workers what the agent did or noticed by itself. They wait
// in memory until a receipt names them; a new agent process knows nothing of
// them.
type events struct {
	workers *requester
	clock   *clock
	self    identity
	agentID string
	metrics *metrics
	log     logrus.FieldLogger

	added   chan struct{} // holds a token when there is more to do
	retries *backOff

	mu      sync.Mutex
	waiting []agentproto.Event // the next to send first; its own message id each
	recent  map[topic]*repeats
	held    int // held back: not in waiting until their pauses end
	lost    int // dropped since the last event that was acknowledged
}

// topic is what an event is about: another one of the same topic within
// [eventGap] is a repetition. What is said of the host differs in the message.
type topic struct{ kind, key, message string }

func topicOf(e agentproto.Event) topic {
	if e.Key == "" {
		return topic{kind: e.Kind, message: e.Message}
	}
	return topic{kind: e.Kind, key: e.Key}
}

// repeats are the events of a topic since one was queued.
type repeats struct {
	end   time.Time // of the gap, by the local monotonic clock
	count int
	since time.Time // of the first repetition
	last  agentproto.Event
}

func newEvents(workers *requester, self identity, m *metrics, cfg *Config) *events {
	return &events{
		workers: workers, clock: workers.clock, self: self, agentID: cfg.AgentID, metrics: m, log: cfg.Log,
		added: make(chan struct{}, 1), retries: newBackOff(), recent: map[topic]*repeats{},
	}
}

// tell queues an event, of which Kind, Message, Details and what says which
// process it is about are filled in. It does not block.
func (e *events) tell(event agentproto.Event) {
	event.Header = newHeader(agentproto.TypeEvent)
	event.Host, event.AgentID, event.Instance = e.self.host, e.agentID, e.self.instance
	event.At = e.clock.now().UTC()
	event.Details = maps.Clone(event.Details) // the teller may go on using it
	e.metrics.told(event.Kind)
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
	e.put(event)
}

// put queues an event; the caller holds e.mu.
func (e *events) put(event agentproto.Event) {
	e.waiting = append(e.waiting, event)
	if drop := len(e.waiting) - eventLimit; drop > 0 {
		if e.lost == 0 {
			e.log.Warn("event queue full, oldest events dropped")
		}
		e.lost += drop
		e.metrics.dropped(drop)
		e.waiting = append([]agentproto.Event(nil), e.waiting[drop:]...)
	}
}

// settle queues what was repeated in gaps that are over at now, and returns
// when the next one is; zero if there is none.
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
			e.put(r.told())
			*r = repeats{end: now.Add(eventGap)}
		}
		if next.IsZero() || r.end.Before(next) {
			next = r.end
		}
	}
	return next
}

// told is the latest event, standing for all.
func (r *repeats) told() agentproto.Event {
	if r.count > 1 {
		if r.last.Details == nil {
			r.last.Details = map[string]any{}
		}
		r.last.Details[detailCount], r.last.Details[detailSince] = r.count, r.since
	}
	return r.last
}

// pending is how many events are queued.
func (e *events) pending() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting)
}

// retryNow ends a pause after a failure, because the connection is back.
func (e *events) retryNow() { e.retries.end() }

// run sends until ctx ends.
func (e *events) run(ctx context.Context) {
	for ctx.Err() == nil {
		next := e.settle(time.Now())
		if e.pending() > 0 {
			if e.retries.wait(ctx) {
				_ = e.sendNext(ctx) // it has logged why it failed
			}
			continue
		}
		wait := time.NewTimer(time.Until(next))
		if next.IsZero() {
			wait.Stop()
		}
		select {
		case <-ctx.Done():
		case <-e.added:
		case <-wait.C:
		}
		wait.Stop()
	}
}

// flush sends what waits, repetitions included; what is left when ctx ends, or
// if there is no worker, is lost. It must not run beside run.
func (e *events) flush(ctx context.Context) {
	e.settle(time.Now().Add(eventGap))
	e.retries.end() // a pause may be longer than the time that is left
	for e.pending() > 0 && e.retries.wait(ctx) {
		if errors.Is(e.sendNext(ctx), nats.ErrNoResponders) {
			return
		}
	}
}

// sendNext sends the oldest event, and removes it once a receipt names it. It
// returns why the request failed.
func (e *events) sendNext(ctx context.Context) error {
	event, lost := e.oldest()
	sent, err := bounded(event, lost)
	if err != nil {
		e.log.WithError(err).WithField("kind", event.Kind).Error("event dropped: encoding failed")
		e.remove(event.ID, 0)
		return nil
	}
	var receipt agentproto.Receipt
	_, err = e.workers.request(ctx, agentproto.EventSubject(e.self.cloud), sent, agentproto.TypeReceipt, &receipt)
	pause := receipt.RetryAfter()
	switch {
	case err != nil:
		e.backOff(ctx, err)
		return err
	case pause > 0 && receipt.Event == event.ID:
		e.log.WithFields(logrus.Fields{"kind": event.Kind, "retry_after": pause}).Warn("event refused by the event stream, held back")
		e.retries.succeeded()
		e.holdBack(event, pause)
	case pause > 0:
		e.log.WithField("retry_after", pause).Debug("workers busy, events queued")
		e.retries.busy(pause)
	case receipt.Event != event.ID:
		e.backOff(ctx, fmt.Errorf("the receipt is for event %q, not %q", receipt.Event, event.ID))
	default:
		e.remove(event.ID, lost)
		if e.retries.succeeded() {
			e.log.WithField("dropped", lost).Info("events acknowledged again")
		}
	}
	return nil
}

func (e *events) oldest() (event agentproto.Event, lost int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.waiting[0], e.lost
}

// holdBack queues an event again, behind the others, after a pause.
func (e *events) holdBack(event agentproto.Event, pause time.Duration) {
	e.remove(event.ID, 0)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held == eventLimit {
		e.lost++
		e.metrics.dropped(1)
		return
	}
	e.held++
	time.AfterFunc(pause, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.held--
		e.put(event)
		signal(e.added)
	})
}

// remove removes an event from the queue, unless it was dropped meanwhile, and
// the number of lost ones that it reported.
func (e *events) remove(id string, lost int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost -= lost
	if len(e.waiting) > 0 && e.waiting[0].ID == id {
		e.waiting = e.waiting[1:]
	}
}

// bounded returns an event as it is sent, with the number of events that were
// dropped before it: without its details if they are too large or cannot be
// encoded. Repeated requests have the same id.
func bounded(event agentproto.Event, lost int) (*agentproto.Event, error) {
	event.Receipt = true
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

// backOff begins a pause after a failure.
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
