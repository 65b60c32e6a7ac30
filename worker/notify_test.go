package worker_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/destination"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker"
)

// forgetful is a store whose fail-over loses the result that completed a task.
type forgetful struct {
	*fakeStore
	lost atomic.Bool
}

func (s *forgetful) Record(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	recorded, err := s.fakeStore.Record(ctx, batches)
	for i := range recorded {
		if !recorded[i].Completed || !s.lost.CompareAndSwap(false, true) {
			continue
		}
		s.change(batches[i].Task, func(f *fakeTask) {
			f.task.State, f.task.NotifyPending, f.task.FinishedAt = procfleet.TaskRunning, false, time.Time{}
			f.states[0], f.results[0] = procfleet.StateDelivered, procfleet.Result{}
		})
	}
	return recorded, err
}

func TestATaskWhoseLastResultWasLostStaysWithTheSweep(t *testing.T) {
	t.Parallel()
	var store *forgetful
	e := start(t, func(c *worker.Config) {
		store = &forgetful{fakeStore: c.Store.(*fakeStore)}
		c.Store, c.Timing.Sweep.ResendAfter = store, time.Hour
	})
	e.agent(host(1), accept)
	id := e.submit(2*time.Second, chunk(procfleet.ActionStart, host(1)))
	e.waitState(id, 0, procfleet.StateDelivered)
	e.publish(id, host(1), succeeded(0))
	e.eventually(store.lost.Load, "the result is lost")
	e.waitState(id, 0, procfleet.StateTimedOut)
	e.eventually(func() bool { return e.store.settled(id) }, "the task ends")
}

// The end of a task that its dispatcher withdrew is an event.
func TestAWithdrawnTaskHasAnEnd(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *worker.Config) {
		logger, _ := logrustest.NewNullLogger()
		log, err := audit.New(audit.Config{Sinks: []audit.Sink{c.Bus.AuditSink()}, Log: logger, Meter: noop.Meter{}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(log.Close)
		c.Audit = log
	})
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.store.change(task.ID, func(f *fakeTask) { f.task.State = procfleet.TaskRejected })
	if err := e.store.Revisit(t.Context(), taskstore.NextVisit{Task: task.ID}); err != nil {
		t.Fatal(err)
	}
	e.eventually(func() bool { return e.store.settled(task.ID) }, "the task is settled")
	stream, err := e.JS.Stream(t.Context(), bus.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := stream.GetLastMsgForSubject(t.Context(), "procfleet.task.rejected")
	if err != nil {
		t.Fatal(err)
	}
	var record audit.Record
	if err := json.Unmarshal(msg.Data, &record); err != nil || record.Task != task.ID || record.State != procfleet.TaskRejected || record.Number != 2 {
		t.Errorf("event %s, %v", msg.Data, err)
	}
}

func TestTheEndIsNotifiedByEventAndCallback(t *testing.T) {
	t.Parallel()
	e := start(t)
	var calls, events atomic.Int32
	sub, err := e.Conn.Subscribe("procfleet.task.finished", func(*nats.Msg) { events.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	if err := e.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
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
	if n := events.Load(); n != 1 {
		t.Errorf("the event was sent %d times for one callback that was repeated", n)
	}
	if told.Event != string(task.ID)+"/finished" || called.Event != told.Event || called.Counts[procfleet.StateSucceeded] != 1 {
		t.Errorf("event %+v, callback %+v", told, called)
	}
}

// In TestAnEndThatCannotBeReadStaysPendingAlone three tasks end at the same time.
func TestAnEndThatCannotBeReadStaysPendingAlone(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.agent(host(1), accept)
	var ids []procfleet.TaskID
	for range 3 {
		ids = append(ids, e.submit(time.Minute, chunk(procfleet.ActionStart, host(1))))
	}
	for _, id := range ids {
		e.waitState(id, 0, procfleet.StateDelivered)
	}
	e.store.change(ids[1], func(f *fakeTask) { f.unreadable = true })
	for _, id := range ids {
		e.publish(id, host(1), succeeded(0))
	}
	e.eventually(func() bool { return e.store.settled(ids[0]) && e.store.settled(ids[2]) }, "the other ends are notified")
	if e.store.settled(ids[1]) {
		t.Error("the end of a task that cannot be read is notified")
	}
	e.store.change(ids[1], func(f *fakeTask) { f.unreadable = false })
	e.eventually(func() bool { return e.store.settled(ids[1]) }, "it is notified when it can be read")
}

func TestTheSweepSendsPendingNotifications(t *testing.T) {
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
		t.Error("the end is not stored as notified")
	}
}

func TestACallbackToALocalAddressIsRefusedOnceAndForGood(t *testing.T) {
	t.Parallel()
	log, hook := logrustest.NewNullLogger()
	policy, err := destination.Parse("workers with --callback-allow", nil)
	if err != nil {
		t.Fatal(err)
	}
	e := start(t, func(c *worker.Config) { c.Receivers, c.Log = policy, log })
	reached := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
	defer server.Close()
	_, port, _ := strings.Cut(server.Listener.Addr().String(), ":")
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.store.change(task.ID, func(f *fakeTask) { f.task.Callback = "http://ada:hunter2@localhost:" + port + "/done?token=s3cret" })
	e.queue(task)
	e.waitState(task.ID, 0, procfleet.StateUnreachable)
	e.eventually(func() bool { return e.store.settled(task.ID) }, "the refused callback is settled")
	e.stop()
	if len(reached) > 0 {
		t.Error("a server on loopback was reached")
	}
	refused := 0
	for _, entry := range hook.AllEntries() {
		line, err := entry.String()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "callback refused") {
			refused++
			for _, want := range []string{"localhost", "--callback-allow localhost", string(task.ID)} {
				if !strings.Contains(line, want) {
					t.Errorf("the line does not say %q: %s", want, line)
				}
			}
		}
		if strings.Contains(line, "hunter2") || strings.Contains(line, "s3cret") {
			t.Errorf("a secret of the URL is logged: %s", line)
		}
	}
	if refused != 1 {
		t.Errorf("%d lines say that the callback was refused, want 1", refused)
	}
}

func TestHangingCallbacksDoNotHoldUpTheSweep(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *worker.Config) { c.Timing.Callback, c.Timing.Drain = time.Hour, time.Millisecond })
	called := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil { // only then its end is seen
			t.Error(err)
		}
		called <- struct{}{}
		<-r.Context().Done()
	}))
	defer server.Close()
	defer e.stop()
	e.sameShard(func(f *fakeTask) {
		f.task.State, f.task.NotifyPending, f.task.FinishedAt = procfleet.TaskFinished, true, time.Now()
		f.task.Callback = server.URL
	})
	select {
	case <-called:
	case <-time.After(patience):
		t.Fatal("callback did not come")
	}
	overdue := e.sameShard(func(f *fakeTask) { f.task.State, f.task.Deadline = procfleet.TaskRunning, time.Now() })
	e.waitState(overdue, 0, procfleet.StateUnreachable)
	if len(called) > 0 {
		t.Error("a second callback of the task was begun beside the first")
	}
}

func TestAReceiverThatHangsDelaysNeitherEventsNorOtherReceivers(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *worker.Config) {
		c.Timing.Callback, c.Timing.Drain, c.Limits.Notifiers = time.Hour, time.Millisecond, 4
	})
	hung := make(chan struct{}, 1000)
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil { // only then its end is seen
			t.Error(err)
		}
		hung <- struct{}{}
		<-r.Context().Done()
	}))
	defer hanging.Close()
	good := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer good.Close()
	defer e.stop()
	ended := func(callback string) procfleet.TaskID {
		return e.sameShard(func(f *fakeTask) {
			f.task.State, f.task.NotifyPending, f.task.FinishedAt = procfleet.TaskFinished, true, time.Now()
			f.task.Callback = callback
		})
	}
	for range 40 {
		ended(hanging.URL)
	}
	e.eventually(func() bool { return len(hung) > 0 }, "the hanging receiver is called")
	id := ended(good.URL)
	e.eventually(func() bool { return e.store.settled(id) }, "the other receiver is called")
	e.eventually(func() bool { return e.queued(bus.StreamEvents) == 41 }, "every event is published")
}

// In TestACallbackIsGivenUpThoughTheClockSteppedBack the end of a task is a day ahead of the store's
// clock.
func TestACallbackIsGivenUpThoughTheClockSteppedBack(t *testing.T) {
	t.Parallel()
	const lasts = 500 * time.Millisecond
	called := make(chan time.Time, 1) // when the first call came
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case called <- time.Now():
		default:
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	e := start(t, func(c *worker.Config) { c.Timing.CallbackFor = lasts })
	id := e.sameShard(func(f *fakeTask) {
		f.task.State, f.task.NotifyPending, f.task.Callback = procfleet.TaskFinished, true, server.URL
		f.task.FinishedAt = time.Now().Add(24 * time.Hour)
		f.task.ExpiresAt = f.task.FinishedAt.Add(24 * time.Hour)
	})
	e.eventually(func() bool { return e.store.settled(id) }, "the callback is given up")
	if after := time.Since(<-called); after < lasts {
		t.Errorf("the callback was given up after %v, want at least %v", after, lasts)
	}
}

// In TestACallbackThatIsLeftHasNoSecondEvent a second worker continues the notification of a
// task whose event the first worker has published.
func TestACallbackThatIsLeftHasNoSecondEvent(t *testing.T) {
	t.Parallel()
	e := start(t)
	called := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { called <- r.Header.Get("Idempotency-Key") }))
	defer server.Close()
	id := e.sameShard(func(f *fakeTask) {
		f.task.State, f.task.NotifyPending, f.task.FinishedAt = procfleet.TaskFinished, true, time.Now()
		f.task.Callback, f.task.EventPublished = server.URL, true
	})
	e.eventually(func() bool { return e.store.settled(id) }, "the callback is made")
	if key := <-called; key != string(id)+"/finished" {
		t.Errorf("callback with key %q", key)
	}
	if n := e.queued(bus.StreamEvents); n != 0 {
		t.Errorf("%d events were published again", n)
	}
}
