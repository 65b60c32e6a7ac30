package worker_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker"
)

func TestTheSweepPublishesWhatADispatcherLeft(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.agent(host(1), accept)
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)), chunk(procfleet.ActionStop, host(1)))
	e.waitState(task.ID, 0, procfleet.StateDelivered)
	e.waitState(task.ID, 1, procfleet.StateDelivered)
	e.eventually(func() bool {
		now, err := e.store.Task(t.Context(), task.ID)
		return err == nil && now.Dispatched
	}, "task is noted as dispatched")
}

func TestTheSweepPublishesAgainWhatTheStreamLost(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.stop()
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	stream, err := e.JS.Stream(t.Context(), bus.StreamOps)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.agent(host(1), accept)
	e.startWorker()
	e.waitState(id, 0, procfleet.StateDelivered)
	e.eventually(func() bool { return e.store.called("Republished") > 0 }, "new position is noted")
}

func TestTheSweepAsksForLostResults(t *testing.T) {
	t.Parallel()
	e := start(t)
	a := e.agent(host(1), accept)
	var id procfleet.TaskID
	a.resend = func(r *agentproto.Resend) *agentproto.ResendReply {
		e.publish(procfleet.TaskID(r.Task), host(1), succeeded(0))
		return &agentproto.ResendReply{Sent: r.Items}
	}
	id = e.submit(time.Minute, chunk(procfleet.ActionStatus, host(1)))
	e.waitState(id, 0, procfleet.StateDelivered)
	e.store.change(id, func(f *fakeTask) { f.task.CreatedAt = time.Now().Add(-time.Minute) }) // beyond the budget
	e.waitState(id, 0, procfleet.StateSucceeded)
	if a.chased() == 0 {
		t.Error("agent was not asked")
	}
}

func TestItemsThatTheirAgentDoesNotKnowEnd(t *testing.T) {
	t.Parallel()
	unknown := func(r *agentproto.Resend) *agentproto.ResendReply { return &agentproto.ResendReply{Unknown: r.Items} }
	t.Run("a new instance at once", func(t *testing.T) {
		t.Parallel()
		e := start(t)
		a := e.agent(host(1), accept)
		a.resend = unknown
		id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
		e.waitState(id, 0, procfleet.StateDelivered)
		e.store.present(host(1), "new", sinceNow)
		r := e.waitState(id, 0, procfleet.StateFailed)
		if r.Rank != procfleet.RankServer || !strings.Contains(r.Message, "reinstalled") {
			t.Errorf("result is %+v", r)
		}
	})
	t.Run("the same one when it should be done", func(t *testing.T) {
		t.Parallel()
		e := start(t)
		a := e.agent(host(1), accept)
		a.resend = unknown
		id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
		e.waitState(id, 0, procfleet.StateDelivered)
		e.store.change(id, func(f *fakeTask) { f.task.CreatedAt = time.Now().Add(-time.Hour) })
		if r := e.waitState(id, 0, procfleet.StateFailed); !strings.Contains(r.Message, "lost") {
			t.Errorf("result is %+v", r)
		}
	})
	t.Run("but not while two claim the host", func(t *testing.T) {
		t.Parallel()
		e := start(t)
		a := e.agent(host(1), accept)
		a.resend = unknown
		id := e.submit(2*time.Second, chunk(procfleet.ActionStart, host(1)))
		e.waitState(id, 0, procfleet.StateDelivered)
		e.store.present(host(1), "new", sinceNow, conflict)
		seen := e.store.called("Results")
		e.eventually(func() bool { return e.store.called("Results") > seen+2 }, "the sweep looks")
		if a.chased() > 0 {
			t.Error("agent was asked")
		}
	})
}

func TestOverdueItemsEnd(t *testing.T) {
	t.Parallel()
	e := start(t)
	a := e.agent(host(1), accept)
	a.resend = func(r *agentproto.Resend) *agentproto.ResendReply { return &agentproto.ResendReply{Running: r.Items} }
	e.store.present(host(2), "i2") // in grace until after the deadline
	id := e.submit(700*time.Millisecond, chunk(procfleet.ActionStart, hosts(2)...))
	timedOut := e.waitState(id, 0, procfleet.StateTimedOut)
	if timedOut.Code != procfleet.CodeFailed || !strings.HasPrefix(timedOut.Message, "start: timed out after") {
		t.Errorf("delivered item ended as %+v", timedOut)
	}
	never := e.waitState(id, 1, procfleet.StateUnreachable)
	if never.Code != procfleet.CodeAgentAbnormal || !strings.HasPrefix(never.Message, "never delivered") {
		t.Errorf("pending item ended as %+v", never)
	}
	if a.chased() == 0 {
		t.Error("the agent got no last call")
	}
	e.eventually(func() bool { return e.store.settled(id) }, "the end is told")

	e.publish(id, host(1), succeeded(0))
	if late := e.waitState(id, 0, procfleet.StateSucceeded); !late.Late {
		t.Error("result is not marked late")
	}
}

func TestALastCallIsAnswered(t *testing.T) {
	t.Parallel()
	e := start(t)
	a := e.agent(host(1), accept)
	a.resend = func(r *agentproto.Resend) *agentproto.ResendReply {
		e.publish(procfleet.TaskID(r.Task), host(1), succeeded(0))
		return &agentproto.ResendReply{Sent: r.Items}
	}
	id := e.submit(400*time.Millisecond, chunk(procfleet.ActionStart, host(1)))
	if r := e.waitState(id, 0, procfleet.StateSucceeded); r.Late {
		t.Error("the item was given up before its agent could answer")
	}
}

func TestTheSweepForgetsWhatIsNoTask(t *testing.T) {
	t.Parallel()
	e := start(t)
	young := procfleet.Number(time.Now().UnixMicro()).TaskID()
	ahead := procfleet.Number(time.Now().Add(time.Hour).UnixMicro()).TaskID() // the store's clock was
	for _, ghost := range []procfleet.TaskID{young, ahead} {
		if err := e.store.Revisit(t.Context(), ghost, 0); err != nil {
			t.Fatal(err)
		}
	}
	e.eventually(func() bool { return e.store.called("Revisit") > 3 }, "a young entry is left alone")
	e.eventually(func() bool { return e.store.settled(young) }, "an old one is forgotten")
	e.eventually(func() bool { return e.store.settled(ahead) }, "one of the future is forgotten")
}

func TestWorkersShareTheShards(t *testing.T) {
	t.Parallel()
	term := func(c *worker.Config) { c.Timing.Sweep.LeaseTerm = 50 * time.Millisecond }
	e := start(t, term, func(c *worker.Config) { c.ID = "one" })
	e.eventually(func() bool { return e.store.holds("one") == taskstore.SweepShards }, "one worker has them all")
	_, stop := e.startWorker(term, func(c *worker.Config) { c.ID = "two" })
	e.eventually(func() bool { return e.store.holds("two") > 3 }, "another one gets its share")
	stop()
	e.stop()
	if n := e.store.holds("one") + e.store.holds("two"); n > 0 {
		t.Errorf("%d leases were not given back", n)
	}
}

func (s *fakeStore) holds(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, holder := range s.leases {
		if holder == id {
			n++
		}
	}
	return n
}

func TestTheEndIsToldByEventAndCallback(t *testing.T) {
	t.Parallel()
	e := start(t)
	var calls atomic.Int32
	bodies := make(chan []byte, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if calls.Add(1) < 3 { // the first tries fail; the sweep repeats
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
			return
		}
		bodies <- body
	}))
	defer server.Close()
	e.agent(host(1), accept)
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.store.change(task.ID, func(f *fakeTask) { f.task.Callback = server.URL + "/told" })
	e.queue(task)
	e.waitState(task.ID, 0, procfleet.StateDelivered)
	e.publish(task.ID, host(1), succeeded(0))
	var body []byte
	select {
	case body = <-bodies:
	case <-time.After(patience):
		t.Fatal("callback did not come")
	}
	e.eventually(func() bool { return e.store.settled(task.ID) }, "the end is told")

	stream, err := e.JS.Stream(t.Context(), bus.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := stream.GetLastMsgForSubject(t.Context(), "procfleet.task.finished")
	if err != nil {
		t.Fatal(err)
	}
	var told, called bus.TaskFinished
	if err := json.Unmarshal(msg.Data, &told); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &called); err != nil {
		t.Fatal(err)
	}
	if told.Event != string(task.ID)+"/finished" || called.Event != told.Event || called.Counts[procfleet.StateSucceeded] != 1 {
		t.Errorf("event %+v, callback %+v", told, called)
	}
}

func TestTheSweepTellsWhatStayedPending(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.stop()
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	if _, err := e.store.Record(t.Context(), []taskstore.Batch{{Task: task.ID, Results: []procfleet.Result{
		{Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent},
	}}}); err != nil {
		t.Fatal(err)
	}
	e.startWorker()
	e.eventually(func() bool { return e.store.settled(task.ID) }, "the end is told")
	if e.queued(bus.StreamEvents) != 1 || e.store.called("Notified") != 1 {
		t.Error("the event was not sent once")
	}
}

func TestACallbackIsGivenUpAfterAWhile(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *worker.Config) { c.Timing.CallbackFor = 200 * time.Millisecond })
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.store.change(task.ID, func(f *fakeTask) { f.task.Callback = "http://127.0.0.1:1/nobody" })
	e.queue(task)
	e.waitState(task.ID, 0, procfleet.StateUnreachable)
	e.eventually(func() bool { return e.store.settled(task.ID) }, "the callback is given up")
	if e.store.called("Notified") != 1 {
		t.Error("the end is not noted as told")
	}
}
