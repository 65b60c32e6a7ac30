package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/worker"
)

// overdue stores a task whose items were all accepted by agents, and whose deadline was the
// given time ago.
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

func TestAnOverdueTaskWithMoreItemsThanOneVisitRequestsEnds(t *testing.T) {
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

// A worker that died may have delivered a command without storing that.
func TestNeverDeliveredIsReportedOnlyAfterAResendRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begun   bool
		reply   func(r *agentproto.Resend) *agentproto.ResendReply
		state   procfleet.State
		message string
	}{
		"never begun":             {false, nil, procfleet.StateUnreachable, "never delivered"},
		"the agent denies it":     {true, func(r *agentproto.Resend) *agentproto.ResendReply { return &agentproto.ResendReply{Unknown: r.Items} }, procfleet.StateUnreachable, "never delivered"},
		"the agent runs it":       {true, func(r *agentproto.Resend) *agentproto.ResendReply { return &agentproto.ResendReply{Running: r.Items} }, procfleet.StateTimedOut, "start: timed out"},
		"the agent does not say":  {true, func(*agentproto.Resend) *agentproto.ResendReply { return nil }, procfleet.StateUnreachable, "no reply from the agent"},
		"there is no agent there": {true, nil, procfleet.StateUnreachable, "no reply from the agent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, unswept)
			if c.reply != nil {
				e.agent(host(1), accept).resend = c.reply
			}
			task := e.store.create(procfleet.LaneSmall, time.Hour, chunk(procfleet.ActionStart, host(1)))
			e.store.change(task.ID, func(f *fakeTask) {
				f.task.State, f.task.Dispatched, f.task.Deadline = procfleet.TaskRunning, true, time.Now()
				if c.begun {
					f.begun[0] = f.task.CreatedAt
				}
			})
			if r := e.waitState(task.ID, 0, c.state); !strings.HasPrefix(r.Message, c.message) {
				t.Errorf("the message is %q, want one that begins with %q", r.Message, c.message)
			}
		})
	}
}
