package worker_test

import (
	"sync"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/worker"
)

func TestResultsThatComeWhileOthersAreStoredGoTogether(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.stop()
	const n = 300
	id := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, hosts(n)...)).ID
	for item, h := range hosts(n) {
		e.publish(id, h, succeeded(item))
	}
	results, err := e.Bus.CollectConsumer(t.Context(), bus.ResultLane(procfleet.LaneSmall))
	if err != nil {
		t.Fatal(err)
	}
	given := make(chan struct{})
	release := sync.OnceFunc(func() { close(given) })
	e.startWorker(func(c *worker.Config) {
		c.Timing.Pull = 5 * time.Second // one request brings them all
		c.Reached = func(point string) {
			if point == worker.PointCollecting {
				<-given // the store is busy with the first
			}
		}
	})
	t.Cleanup(release)
	e.eventually(func() bool {
		info, err := results.Info(t.Context())
		return err == nil && info.NumPending == 0
	}, "the worker has all results")
	release()
	for item := range n {
		e.waitState(id, item, procfleet.StateSucceeded)
	}
	if calls := e.store.called("Record"); calls > n/4 {
		t.Errorf("%d results took %d calls to the store", n, calls)
	}
	e.eventually(func() bool { return e.queued(bus.StreamResults) == 0 }, "all are acknowledged")
}

func TestResultsFromAnotherCloudAreaAreDropped(t *testing.T) {
	t.Parallel()
	e := start(t)
	id := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1))).ID
	data, err := agentproto.Encode(&agentproto.Results{
		Header: agentproto.Header{Type: agentproto.TypeResults}, Task: string(id), Host: host(1).String(),
		Results: []agentproto.Result{succeeded(0)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.JS.Publish(t.Context(), agentproto.ResultSubject("s", 7), data); err != nil {
		t.Fatal(err)
	}
	e.eventually(func() bool { return e.queued(bus.StreamResults) == 0 }, "message is terminated")
	if state := e.state(id, 0); state.Final() {
		t.Errorf("item is %s", state)
	}
}

func TestAnnouncementsAreStoredAndAnswered(t *testing.T) {
	t.Parallel()
	e := start(t)
	announce := func(leaving bool) agentproto.PresenceReply {
		t.Helper()
		data, err := agentproto.Encode(&agentproto.Presence{
			Header: agentproto.Header{Type: agentproto.TypePresence}, Host: host(1).String(),
			AgentID: "a1", Instance: "i1", Version: "v1", Leaving: leaving, CPU: 12.5, Memory: 1e9,
		})
		if err != nil {
			t.Fatal(err)
		}
		msg, err := e.Conn.Request(agentproto.PresenceSubject(0), data, patience)
		if err != nil {
			t.Fatal(err)
		}
		var reply agentproto.PresenceReply
		if err := agentproto.Decode(msg.Data, agentproto.TypePresenceReply, &reply); err != nil {
			t.Fatal(err)
		}
		return reply
	}
	if off := time.Since(announce(false).ServerTime).Abs(); off > patience {
		t.Errorf("server time is off by %v", off)
	}
	if ps, err := e.store.Presences(t.Context(), hosts(1)); err != nil || ps[0].Instance != "i1" || ps[0].AgentID != "a1" ||
		ps[0].CPU != 12.5 || ps[0].Memory != 100 {
		t.Errorf("presence is %+v, %v", ps, err)
	}
	announce(true)
	if ps, err := e.store.Presences(t.Context(), hosts(1)); err != nil || !ps[0].Host.IsZero() {
		t.Errorf("after leaving: %+v, %v", ps, err)
	}
	// What is no announcement does not stop the next one.
	for _, text := range []string{"", "{", `{"type":"procfleet.agent.v1.presence","host":"7:10.0.0.1","instance":"x"}`} {
		if err := e.Conn.Publish(agentproto.PresenceSubject(0), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	announce(false)
}

// One message that the store does not take must not keep the others out.
func TestResultsThatCannotBeStoredAreIsolated(t *testing.T) {
	t.Parallel()
	e := start(t)
	good := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1))).ID
	bad := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1))).ID
	e.store.change(bad, func(f *fakeTask) { f.broken = true })
	e.publish(bad, host(1), succeeded(0))
	e.publish(good, host(1), succeeded(0))
	e.waitState(good, 0, procfleet.StateSucceeded)
	e.eventually(func() bool { return e.queued(bus.StreamResults) == 0 }, "the bad one is dropped after some tries")
	if state := e.state(bad, 0); state != procfleet.StatePending {
		t.Errorf("item of the broken task is %s", state)
	}
}
