package worker_test

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/worker"
)

// overdue stores a task whose items were all accepted and whose deadline has
// passed for as long as given.
func (e *env) overdue(since time.Duration, chunks ...procfleet.Chunk) procfleet.TaskID {
	task := e.store.create(procfleet.BigLane(0), time.Hour, chunks...)
	e.store.change(task.ID, func(f *fakeTask) {
		f.task.State, f.task.Dispatched = procfleet.TaskRunning, true
		f.task.Deadline = time.Now().Add(-since)
		f.task.CreatedAt = f.task.Deadline.Add(-time.Second)
		for i := range f.states {
			f.states[i] = procfleet.StateDelivered
		}
		for i := range f.done {
			f.done[i] = true
		}
	})
	return task.ID
}

func TestAnOverdueTaskWithMoreSilentItemsThanOneVisitAsksEnds(t *testing.T) {
	t.Parallel()
	e := start(t)
	const items, each = 10_300, 256
	var chunks []procfleet.Chunk
	all := hosts(items)
	for i := 0; i < items; i += each {
		chunks = append(chunks, chunk(procfleet.ActionStart, all[i:min(i+each, items)]...))
	}
	last := e.agent(all[items-1], accept)
	id := e.overdue(0, chunks...)
	e.waitState(id, 0, procfleet.StateTimedOut)
	e.eventually(func() bool { return e.store.settled(id) }, "the task ends")
	if last.chased() == 0 {
		t.Error("the last agent got no last call")
	}
}

func TestALastCallDoesNotGoOnForEver(t *testing.T) {
	t.Parallel()
	const most = 10 * time.Second
	e := start(t, func(c *worker.Config) { c.Timing.Sweep.LastCall, c.Timing.Sweep.LastCallMax = time.Hour, most })
	a := e.agent(host(1), accept)
	a.resend = func(r *agentproto.Resend) *agentproto.ResendReply { return &agentproto.ResendReply{Running: r.Items} }
	id := e.overdue(most+time.Second, chunk(procfleet.ActionStart, host(1)))
	e.waitState(id, 0, procfleet.StateTimedOut)
	e.eventually(func() bool { return e.store.settled(id) }, "the task ends")
}
