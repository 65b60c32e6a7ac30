package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
)

// oldStreams creates the streams and consumers that the previous release used for agents'
// results and events.
func (e *env) oldStreams() {
	e.t.Helper()
	_, err := e.JS.CreateStream(e.t.Context(), jetstream.StreamConfig{
		Name: bus.StreamOldResults, Subjects: []string{"procfleet.result.*.*"}, Retention: jetstream.WorkQueuePolicy, DenyDelete: true, DenyPurge: true,
	})
	for _, lane := range []string{"s", "b"} {
		if err == nil {
			_, err = e.JS.CreateConsumer(e.t.Context(), bus.StreamOldResults, jetstream.ConsumerConfig{
				Durable: "collect-" + lane, FilterSubject: agentproto.ResultsOfLane(lane), AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: -1,
			})
		}
	}
	var events jetstream.Stream
	if err == nil {
		events, err = e.JS.Stream(e.t.Context(), bus.StreamHostEvents)
	}
	if err == nil {
		cfg := events.CachedInfo().Config
		cfg.Subjects = []string{agentproto.EventsAll}
		_, err = e.JS.UpdateStream(e.t.Context(), cfg)
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

// oldResults returns results in the form in which agents of the previous release publish them.
func (e *env) oldResults(lane string, id procfleet.TaskID, h procfleet.Host, results ...agentproto.Result) *nats.Msg {
	message := resultsOf(id, h, results...)
	message.Receipt = false
	return &nats.Msg{Subject: agentproto.ResultSubject(lane, 0), Data: e.encode(message)}
}

func TestTheOldResultsStreamIsDrainedAndRemoved(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.stop()
	e.oldStreams()
	const n = 5
	ids := map[string]procfleet.TaskID{}
	for _, lane := range []string{"s", "b"} {
		ids[lane] = e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, hosts(n)...)).ID
		for item, h := range hosts(n) {
			if _, err := e.JS.PublishMsg(t.Context(), e.oldResults(lane, ids[lane], h, succeeded(item))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := e.JS.Publish(t.Context(), agentproto.ResultSubject("s", 0), []byte("no results")); err != nil {
		t.Fatal(err)
	}
	e.startWorker()
	for _, id := range ids {
		for item := range n {
			e.waitState(id, item, procfleet.StateSucceeded)
		}
	}
	e.eventually(func() bool {
		_, err := e.JS.Stream(t.Context(), bus.StreamOldResults)
		return errors.Is(err, jetstream.ErrStreamNotFound)
	}, "the stream is removed")
	events, err := e.JS.Stream(t.Context(), bus.StreamHostEvents)
	if err != nil || events.CachedInfo().Config.Subjects[0] != "procfleet.hostevent.*" {
		t.Errorf("the stream of events still takes messages of agents: %v", err)
	}
}

func TestAResultOfTheOldStreamThatTheStoreRefusesOnceIsNotLost(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.stop()
	e.oldStreams()
	id := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1))).ID
	e.store.change(id, func(f *fakeTask) { f.refusals = 2 }) // in a batch and alone
	if _, err := e.JS.PublishMsg(t.Context(), e.oldResults("s", id, host(1), succeeded(0))); err != nil {
		t.Fatal(err)
	}
	e.startWorker(unswept)
	e.waitState(id, 0, procfleet.StateSucceeded)
}

func TestAnAgentOfTheReleaseBeforeGetsTheAcknowledgementOfAStreamOnceStored(t *testing.T) {
	t.Parallel()
	e := start(t)
	id := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1))).ID
	msg := e.oldResults("s", id, host(1), succeeded(0))
	// While the store is unavailable the worker does not reply; its metrics count the messages
	// without a reply.
	e.store.setUnavailable(true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if reply, err := e.Conn.RequestMsgWithContext(ctx, msg); err == nil {
		t.Errorf("got %s while the store is unavailable", reply.Data)
	}
	e.store.setUnavailable(false)
	var ack *jetstream.PubAck
	e.eventually(func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var err error
		ack, err = e.JS.PublishMsg(ctx, msg) // as the agent does
		return err == nil
	}, "the acknowledgement comes")
	if ack.Stream != "PROCFLEET_RESULTS" || ack.Sequence != 1 || e.state(id, 0) != procfleet.StateSucceeded {
		t.Errorf("acknowledged as %+v, item is %s", ack, e.state(id, 0))
	}
	event := &nats.Msg{Subject: agentproto.EventSubject(0), Data: e.encode(eventOf(host(1), "e1", false))}
	if ack, err := e.JS.PublishMsg(t.Context(), event); err != nil || ack.Stream != "PROCFLEET_HOST_EVENTS" {
		t.Errorf("event: %+v, %v", ack, err)
	}
}
