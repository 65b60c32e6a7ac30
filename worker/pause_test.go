package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

// pause sets or, with held false, removes the hold of a task, as Pause and Resume do.
func (e *env) pause(id procfleet.TaskID, held bool) {
	e.t.Helper()
	e.store.change(id, func(f *fakeTask) {
		f.task.Hold = procfleet.Hold{}
		if held {
			f.task.Hold = procfleet.Hold{Kind: procfleet.HoldOperator, Since: time.Now()}
		}
	})
	if held {
		return
	}
	if err := e.store.Revisit(e.t.Context(), taskstore.NextVisit{Task: id}); err != nil {
		e.t.Fatal(err)
	}
}

func TestAPausedTaskIsDeliveredAfterItIsResumed(t *testing.T) {
	t.Parallel()
	e := start(t)
	agent := e.agent(host(1), accept)
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.pause(task.ID, true)
	e.queue(task)
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "the chunk is dropped")
	visits := e.store.called("TasksByID")
	e.eventually(func() bool { return e.store.called("TasksByID") > visits+3 }, "the sweep visits the task")
	if n := agent.asked(); n > 0 || e.state(task.ID, 0) != procfleet.StatePending || e.queued(bus.StreamOps) > 0 {
		t.Errorf("%d commands while the task was paused, item %s", n, e.state(task.ID, 0))
	}
	e.pause(task.ID, false)
	e.waitState(task.ID, 0, procfleet.StateDelivered)
}

func TestAPauseEndsRequestsToHostsThatDoNotReply(t *testing.T) {
	t.Parallel()
	for name, hinted := range map[string]bool{"with a hint": true, "without a hint": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t)
			agent := e.agent(host(1), silent)
			id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
			e.eventually(func() bool { return agent.asked() > 0 }, "the first command is sent")
			e.pause(id, true)
			paused := time.Now()
			if hinted {
				if err := e.Bus.Hold(id); err != nil {
					t.Fatal(err)
				}
			}
			e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "the chunk is dropped")
			for _, c := range agent.got() {
				if limit := paused.Add(quick().Deliver.AcceptWindow); c.AcceptBefore.After(limit) {
					t.Errorf("an agent may accept a command until %v, the task was paused at %v", c.AcceptBefore, paused)
				}
			}
			if state := e.state(id, 0); state != procfleet.StatePending {
				t.Errorf("the item is %s", state)
			}
			before := agent.asked()
			e.pause(id, false)
			e.eventually(func() bool { return agent.asked() > before }, "another command is sent")
		})
	}
}

// The worker must publish the chunk itself: the sweep searches for lost chunks only after a
// while.
func TestAChunkIsNotLostIfItsTaskIsResumedWhileAWorkerDropsIt(t *testing.T) {
	t.Parallel()
	e := start(t, unswept)
	e.agent(host(1), accept)
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.store.change(task.ID, func(f *fakeTask) { f.task.Hold.Kind, f.holds = procfleet.HoldOperator, 1 }) // resumed once the worker has read the hold
	e.queue(task)
	e.waitState(task.ID, 0, procfleet.StateDelivered)
}

func TestAPausedTaskOutlastsItsDeadlineExceptWhatAgentsAccepted(t *testing.T) {
	t.Parallel()
	e := start(t)
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, hosts(2)...))
	e.pause(task.ID, true)
	expire := func(ago time.Duration) {
		e.store.change(task.ID, func(f *fakeTask) {
			now := time.Now()
			f.task.CreatedAt, f.task.Deadline, f.task.ExpiresAt = now.Add(-ago-time.Minute), now.Add(-ago), now.Add(-ago+time.Hour)
		})
	}
	e.store.change(task.ID, func(f *fakeTask) { f.states[0] = procfleet.StateDelivered })
	e.queue(task)
	expire(time.Second)
	e.waitState(task.ID, 0, procfleet.StateTimedOut)
	visits := e.store.called("TasksByID")
	e.eventually(func() bool { return e.store.called("TasksByID") > visits+3 }, "the sweep visits the task")
	if state := e.state(task.ID, 1); state != procfleet.StatePending {
		t.Errorf("the item that nobody accepted is %s", state)
	}
	expire(31 * time.Minute) // half of the retention
	r := e.waitState(task.ID, 1, procfleet.StateUnreachable)
	if !strings.Contains(r.Message, "the task was paused at") {
		t.Errorf("message %q", r.Message)
	}
}
