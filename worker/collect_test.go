package worker_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/worker"
	"github.com/procfleet/procfleet/worker/collect"
)

func TestResultsThatComeWhileOthersAreStoredGoTogether(t *testing.T) {
	t.Parallel()
	const n = 300
	s := newSigning(t)
	first, given := make(chan struct{}, n), make(chan struct{})
	release := sync.OnceFunc(func() { close(given) })
	e := start(t, func(c *worker.Config) {
		c.Meter = s.metrics.Meter("worker")
		c.Reached = func(point string) {
			if point == collect.PointCollecting {
				first <- struct{}{}
				<-given // the store is busy with the first
			}
		}
	})
	t.Cleanup(release)
	id := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, hosts(n)...)).ID
	for item, h := range hosts(n) {
		if err := e.Conn.Publish(agentproto.ResultSubject("s", 0), e.encode(resultsOf(id, h, succeeded(item)))); err != nil {
			t.Fatal(err)
		}
		if item == 0 {
			<-first
		}
	}
	e.eventually(func() bool {
		return s.says(fmt.Sprintf("procfleet_worker_inbox_waiting_messages{inbox=\"results_s\"} %d\n", n-1))
	}, "the other results wait")
	release()
	for item := range n {
		e.waitState(id, item, procfleet.StateSucceeded)
	}
	if calls := e.store.called("Record"); calls > n/4 {
		t.Errorf("%d results took %d calls to the store", n, calls)
	}
}

func TestResultsFromAnotherCloudAreaAreDropped(t *testing.T) {
	t.Parallel()
	s := newSigning(t)
	e := start(t, func(c *worker.Config) { c.Meter = s.metrics.Meter("worker") })
	id := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1))).ID
	err := e.Conn.Publish(agentproto.ResultSubject("s", 7), e.encode(resultsOf(id, host(1), succeeded(0))))
	if err != nil {
		t.Fatal(err)
	}
	e.eventually(func() bool {
		return s.says(`procfleet_worker_dropped_result_messages_total{reason="not_understood"} 1` + "\n")
	}, "the message is counted")
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
			AgentID: "a1", Instance: "i1", Incarnation: "p1", Version: "v1", Leaving: leaving, CPU: 12.5, Memory: 1e9,
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
	// Invalid announcements do not stop the next valid one.
	for _, text := range []string{"", "{", `{"type":"procfleet.agent.v1.presence","host":"7:10.0.0.1","instance":"x"}`} {
		if err := e.Conn.Publish(agentproto.PresenceSubject(0), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	announce(false)
}

// A message that the store rejects must not prevent the storage of other messages.
func TestResultsThatCannotBeStoredAreIsolated(t *testing.T) {
	t.Parallel()
	s := newSigning(t)
	e := start(t, func(c *worker.Config) { c.Meter = s.metrics.Meter("worker") })
	good := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1))).ID
	bad := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1))).ID
	e.store.change(bad, func(f *fakeTask) { f.broken = true })
	receipt, _, err := e.request(t.Context(), &nats.Msg{Subject: agentproto.ResultSubject("s", 0), Data: e.encode(resultsOf(bad, host(1), succeeded(0)))})
	if err != nil || receipt.RetryAfter() != agentproto.MaxRetryAfter || receipt.Task != string(bad) {
		t.Errorf("receipt to results that the store refuses: %+v, %v", receipt, err)
	}
	e.publish(bad, host(1), succeeded(0))
	e.publish(good, host(1), succeeded(0))
	e.waitState(good, 0, procfleet.StateSucceeded)
	if s.says(`procfleet_worker_dropped_result_messages_total{reason="not_stored"} 0` + "\n") {
		t.Error("the message at fault is not counted")
	}
	if state := e.state(bad, 0); state != procfleet.StatePending {
		t.Errorf("item of the broken task is %s", state)
	}
}

func TestAReceiptIsSignedForItsRequestAndNamesWhatIsStored(t *testing.T) {
	t.Parallel()
	s := newSigning(t)
	e := start(t, s.worker)
	id := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, hosts(2)...)).ID
	gone := procfleet.Number(1).TaskID()
	for _, c := range []struct {
		task             procfleet.TaskID
		stored, rejected []int
	}{{id, []int{0}, []int{1}}, {gone, nil, []int{0, 1}}} {
		message := resultsOf(c.task, host(1), succeeded(0), succeeded(1))
		data := e.encode(message)
		request := &nats.Msg{Subject: agentproto.ResultSubject("b", 0), Data: data, Header: by(s.ring, host(1), fleetkey.Message{Purpose: agentproto.TypeResults, Body: data})}
		for range 2 { // the second is the repeat of an agent that did not get the first receipt
			receipt, reply, err := e.request(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			if receipt.Task != string(c.task) || receipt.RetryAfterMS != 0 || !slices.Equal(receipt.Stored, c.stored) || !slices.Equal(receipt.Rejected, c.rejected) {
				t.Errorf("receipt of task %s: %+v", c.task, receipt)
			}
			for answers, valid := range map[string]bool{message.ID: true, "another": false} {
				err := s.ring.Host(host(1).String()).Verify(reply.Header, &fleetkey.Message{Purpose: agentproto.TypeReceipt, Answers: answers, Body: reply.Data})
				if (err == nil) != valid {
					t.Errorf("as the answer to %s: %v", answers, err)
				}
			}
		}
	}
}

func TestWorkersReplyOnlyToInboxesOfAgents(t *testing.T) {
	t.Parallel()
	e := start(t)
	id := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1))).ID
	elsewhere, err := e.Conn.SubscribeSync("procfleet.agent.0.10-0-0-9")
	if err != nil {
		t.Fatal(err)
	}
	data := e.encode(resultsOf(id, host(1), succeeded(0)))
	if err := e.Conn.PublishRequest(agentproto.ResultSubject("s", 0), elsewhere.Subject, data); err != nil {
		t.Fatal(err)
	}
	e.receives(e.publish(id, host(1), succeeded(0))) // after it
	if n, _, err := elsewhere.Pending(); n != 0 || err != nil {
		t.Errorf("%d replies, %v", n, err)
	}
}
