package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestEventsSayWhereTheyComeFrom(t *testing.T) {
	t.Parallel()
	h, n := newHost(t)
	h.cfg.AgentID = "web-1"
	const ahead = time.Hour // of the server's clock
	h.answerPresence(ahead, func(agentproto.Presence) {})
	d := newDiary(t, n)
	h.start(nil)
	before := time.Now()
	h.engine.cfg.Emit(agentproto.Event{Kind: agentproto.EventGaveUp, Key: "a:web", Namespace: "a", Name: "web", PID: 7, Message: "why"})
	e := d.next()
	if e.Kind != agentproto.EventGaveUp || e.Key != "a:web" || e.PID != 7 || e.Message != "why" {
		t.Errorf("what was told is changed: %+v", e)
	}
	if e.Type != agentproto.TypeEvent || e.Host != "0:10.0.0.1" || e.AgentID != "web-1" || e.Instance != h.engine.cfg.Instance {
		t.Errorf("it does not say where it comes from: %+v", e)
	}
	if e.At.Before(before.Add(ahead - time.Minute)) {
		t.Errorf("at %v, which is not the server's time", e.At)
	}
}

func TestEventsAreToldWhenTheAgentStops(t *testing.T) {
	t.Parallel()
	h, n := newHost(t)
	d := newDiary(t, n)
	h.start(nil)
	for range 3 { // the second is held back, the third too
		h.engine.cfg.Emit(agentproto.Event{Kind: agentproto.EventRestarted, Key: "a:web", Message: "again"})
	}
	if e := d.next(); e.Details[detailCount] != nil {
		t.Errorf("the first event says %v", e.Details)
	}
	if err := h.stop(); err != nil {
		t.Fatal(err)
	}
	if e := d.next(); e.Details[detailCount] != 2.0 {
		t.Errorf("the repetitions say %v, want a count of 2", e.Details)
	}
}

// eventLog acts as the workers that receive events, unless they are unavailable.
type eventLog struct {
	mu     sync.Mutex
	away   bool
	events []agentproto.Event
}

func (l *eventLog) set(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = away
}

// received returns the events that have a receipt.
func (l *eventLog) received() []agentproto.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

func newTestEvents(t *testing.T, l *eventLog) *events {
	t.Helper()
	return eventsOf(t, nil, func(_ context.Context, msg *nats.Msg) (*nats.Msg, error) {
		var e agentproto.Event
		if err := agentproto.Decode(msg.Data, agentproto.TypeEvent, &e); err != nil {
			t.Error(err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.away {
			return nil, nats.ErrTimeout
		}
		l.events = append(l.events, e)
		return signedReply(t, nil, &agentproto.Receipt{Header: newHeader(agentproto.TypeReceipt), Event: e.ID}, e.ID), nil
	})
}

// eventsOf returns the events of a host with the given keys; nil = not enrolled.
func eventsOf(t *testing.T, keys *fleetkey.Host, workers fakeWorkers) *events {
	t.Helper()
	return newEvents(workers.requester(t, keys))
}

func TestEventsOfAnOutageAreKeptTheLatestOnes(t *testing.T) {
	t.Parallel()
	s := &eventLog{away: true}
	e := newTestEvents(t, s)
	const surplus = 5
	for i := range eventLimit + surplus {
		e.emit(agentproto.Event{Kind: agentproto.EventGaveUp, Key: fmt.Sprint(i), Message: "gone"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.run(ctx) }()
	s.set(false)
	e.retries.end()
	testenv.Eventually(t, patience, func() bool { return e.pending() == 0 }, "everything is published")
	cancel()
	<-done
	told := s.received()
	if len(told) != eventLimit {
		t.Fatalf("%d events, want the latest %d", len(told), eventLimit)
	}
	for i, event := range told {
		if want := fmt.Sprint(i + surplus); event.Key != want {
			t.Fatalf("event %d is that of %s, want %s", i, event.Key, want)
		}
	}
	if got := told[0].Details[detailLost]; got != float64(surplus) {
		t.Errorf("the first says that %v were dropped, want %d", got, surplus)
	}
	if told[1].Details != nil {
		t.Errorf("the second says %v again", told[1].Details)
	}
}

func TestRepeatedEventsAreToldOnceAMinuteWithTheirNumber(t *testing.T) {
	t.Parallel()
	s := &eventLog{}
	e := newTestEvents(t, s)
	tell := func(kind, key, message string) {
		e.emit(agentproto.Event{Kind: kind, Key: key, Message: message, Details: map[string]any{"exit": 1}})
	}
	for i := range 4 {
		tell(agentproto.EventRestarted, "a", fmt.Sprint(i))
	}
	tell(agentproto.EventRestarted, "b", "b")
	tell(agentproto.EventGaveUp, "a", "gave up")
	tell(agentproto.EventUnsafeHost, "", "one thing")
	tell(agentproto.EventUnsafeHost, "", "another")
	if got := e.pending(); got != 5 {
		t.Errorf("%d events wait, want one of each topic", got)
	}
	now := time.Now()
	if next := e.settle(now); next.Before(now) || next.After(now.Add(eventGap)) {
		t.Errorf("repetitions are told at %v, it is %v", next, now)
	}
	if got := e.pending(); got != 5 {
		t.Errorf("%d events wait before the minute is over", got)
	}
	e.settle(now.Add(eventGap))
	if got := e.pending(); got != 6 {
		t.Fatalf("%d events wait after the minute, want the repetitions as one", got)
	}
	e.flush(t.Context())
	told := s.received()
	last := told[len(told)-1]
	if last.Key != "a" || last.Message != "3" || last.Details[detailCount] != 3.0 || last.Details["exit"] != 1.0 {
		t.Errorf("the repetitions are told as %+v", last)
	}
	// The interval begins again with each published event, and ends without further events.
	tell(agentproto.EventRestarted, "a", "5")
	if got := e.pending(); got != 0 {
		t.Errorf("%d events wait within the next minute", got)
	}
	if next := e.settle(now.Add(2 * eventGap)); next.IsZero() {
		t.Error("the repetition is forgotten")
	}
	if next := e.settle(now.Add(3 * eventGap)); !next.IsZero() || len(e.recent) != 0 {
		t.Errorf("%d topics are remembered for ever", len(e.recent))
	}
}

func TestEventThatCannotBeToldDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	s := &eventLog{}
	e := newTestEvents(t, s)
	e.emit(agentproto.Event{Kind: agentproto.EventUncertain, Key: "a", Message: string(make([]byte, eventBytes))})
	e.emit(agentproto.Event{Kind: agentproto.EventUncertain, Key: "b", Message: "b", Details: map[string]any{"f": func() {}}})
	e.emit(agentproto.Event{Kind: agentproto.EventUncertain, Key: "c", Message: "c", Details: map[string]any{"f": string(make([]byte, eventBytes))}})
	e.flush(t.Context())
	told := s.received()
	if len(told) != 2 || told[0].Key != "b" || told[1].Key != "c" || told[0].Details != nil || told[1].Details != nil {
		t.Errorf("told %d events, want those of b and c without details", len(told))
	}
}

func TestAgentTellsThatItDidNotRun(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		passed time.Duration
		want   bool
	}{
		"in time":       {schedulingTick, false},
		"a little late": {2 * schedulingTick, false},
		"a minute late": {time.Minute, true},
	} {
		idle, got := starved(c.passed)
		if got != c.want {
			t.Errorf("%s: starved %v for %v", what, got, idle)
		}
	}
}
