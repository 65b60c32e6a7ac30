package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker"
)

// slowClock is an hour behind the machine's, and not readable at first.
type slowClock struct {
	*fakeStore
	asked atomic.Int32
}

func (s *slowClock) Now(context.Context) (time.Time, error) {
	if s.asked.Add(1) < 4 {
		return time.Time{}, taskstore.ErrUnavailable
	}
	return time.Now().Add(-time.Hour), nil
}

func TestTheMachinesOwnClockDecidesNothing(t *testing.T) {
	t.Parallel()
	store := &slowClock{fakeStore: newFakeStore()}
	task := store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	store.change(task.ID, func(f *fakeTask) {
		f.task.State, f.task.Dispatched = procfleet.TaskRunning, true
		f.task.CreatedAt, f.task.Deadline = task.CreatedAt.Add(-time.Hour), task.Deadline.Add(-time.Hour)
	})
	e := start(t, func(c *worker.Config) { c.Store = store })
	e.eventually(func() bool { return store.called("Revisit") > 2 }, "the task is visited")
	if state, r := store.result(task.ID, 0); state.Final() {
		t.Errorf("a minute before its deadline the task has result %+v", r)
	}
	e.sendsTheTime()
}

// sendsTheTime checks that the reply to an announcement has the store's time.
func (e *env) sendsTheTime() {
	t := e.t
	t.Helper()
	data, err := agentproto.Encode(&agentproto.Presence{
		Header: agentproto.Header{Type: agentproto.TypePresence}, Host: host(1).String(), Instance: "i1", Incarnation: "p1",
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
	if off := time.Until(reply.ServerTime) + time.Hour; off.Abs() > time.Minute {
		t.Errorf("the reply's time is %v from the store's", off)
	}
}
