package worker_test

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/catalog"
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

// A dispatcher that died between storing and registering leaves both to the sweep. The sweep
// replaces older registrations, but not registrations that were made after the task.
func TestTheSweepRegistersWhatADispatcherLeft(t *testing.T) {
	t.Parallel()
	e := start(t)
	c := chunk(procfleet.ActionStart, host(1), host(2), host(3), host(3), host(4), host(5))
	second, unnamed, absent := c.Specs[0], c.Specs[0], procfleet.ProcessSpec{Namespace: "test", Name: "app", Unregistered: true}
	second.Control.Start, unnamed.Namespace, unnamed.Name = "second", "", ""
	c.Specs = append(c.Specs, second, unnamed, absent)
	c.Items[3].Spec = 1                     // the later spec for host 3
	c.Items[4].Spec, c.Items[5].Spec = 2, 3 // neither is a spec to keep
	app := func(n int) catalog.Process { return catalog.Process{Host: host(n), Namespace: "test", Name: "app"} }
	older, newer := c.Specs[0], c.Specs[0]
	older.Control.Start, newer.Control.Start = "older", "newer"
	if _, err := e.store.Register(t.Context(), []catalog.Definition{
		{Spec: newer, Hosts: []procfleet.Host{host(1)}, Asked: time.Now().Add(time.Hour)},
		{Spec: older, Hosts: []procfleet.Host{host(2), host(3)}, Asked: time.Now().Add(-time.Hour)},
	}, true); err != nil {
		t.Fatal(err)
	}
	task := e.store.create(procfleet.LaneSmall, time.Minute, c, chunk(procfleet.ActionStop, host(6)))
	e.eventually(func() bool {
		now, err := e.store.Task(t.Context(), task.ID)
		return err == nil && now.Dispatched
	}, "task is noted as dispatched")
	got := e.store.allRegistered()
	want := map[catalog.Process]string{app(1): "newer", app(2): "", app(3): "second"}
	if !maps.Equal(got, want) {
		t.Errorf("registered are %v, want %v", got, want)
	}
}

// A registration ends with the task that made it if its host did not accept the operation.
func TestAFailedFirstStartDoesNotRegisterForEver(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.agent(host(1), accept)
	e.agent(host(2), accept)
	if err := e.store.Report(t.Context(), []catalog.Report{{Host: host(4), Number: 1}}); err != nil { // its agent is away
		t.Fatal(err)
	}
	c := chunk(procfleet.ActionStart, host(1), host(2), host(3), host(4), host(5))
	if _, err := e.store.Register(t.Context(), []catalog.Definition{ // by a later request
		{Spec: c.Specs[0], Hosts: []procfleet.Host{host(5)}, Asked: time.Now().Add(time.Hour)},
	}, true); err != nil {
		t.Fatal(err)
	}
	id := e.store.create(procfleet.LaneSmall, 5*time.Second, c).ID // the sweep registers and queues it
	app := func(n int) catalog.Process { return catalog.Process{Host: host(n), Namespace: "test", Name: "app"} }
	e.waitState(id, 0, procfleet.StateDelivered)
	e.waitState(id, 1, procfleet.StateDelivered)
	failed, refused := succeeded(0), succeeded(1)
	failed.Code, failed.Reason = int(procfleet.CodeFailed), string(procfleet.ReasonCommandFailed)
	refused.Code, refused.Reason = int(procfleet.CodeFailed), string(procfleet.ReasonRefused)
	e.publish(id, host(1), failed)
	e.publish(id, host(2), refused)
	for item := 2; item < 5; item++ {
		e.waitState(id, item, procfleet.StateUnreachable)
	}
	e.eventually(func() bool { return e.store.settled(id) }, "the task ends")
	left := slices.SortedFunc(maps.Keys(e.store.allRegistered()), func(a, b catalog.Process) int { return a.Host.Addr.Compare(b.Host.Addr) })
	if want := []catalog.Process{app(1), app(4), app(5)}; !slices.Equal(left, want) {
		t.Errorf("registered are %v, want %v", left, want)
	}
}

func TestTheSweepPublishesAgainWhatTheStreamLost(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.stop()
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	if err := e.JS.DeleteStream(t.Context(), bus.StreamOps); err != nil {
		t.Fatal(err)
	}
	if err := bus.Ensure(t.Context(), e.JS, bus.Options{}); err != nil {
		t.Fatal(err)
	}
	e.agent(host(1), accept)
	e.startWorker()
	e.waitState(id, 0, procfleet.StateDelivered)
	e.eventually(func() bool { return e.store.called("Republished") > 0 }, "new position is noted")
}

func TestTheSweepRequestsLostResultsAgain(t *testing.T) {
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
		a.resend = func(r *agentproto.Resend) *agentproto.ResendReply {
			return &agentproto.ResendReply{Instance: "new", Unknown: r.Items}
		}
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
	t.Run("but not by the word of another process than the announced one", func(t *testing.T) {
		t.Parallel()
		e := start(t)
		a := e.agent(host(1), accept)
		incarnation := "of a clone"
		a.resend = func(r *agentproto.Resend) *agentproto.ResendReply {
			return &agentproto.ResendReply{Incarnation: incarnation, Unknown: r.Items}
		}
		e.store.present(host(1), a.instance, func(p *taskstore.Presence) { p.Incarnation = "original" })
		id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
		e.waitState(id, 0, procfleet.StateDelivered)
		e.store.change(id, func(f *fakeTask) { f.task.CreatedAt = time.Now().Add(-time.Hour) })
		e.eventually(func() bool { return a.chased() > 2 }, "the agent is asked")
		e.waitState(id, 0, procfleet.StateDelivered)
		a.mu.Lock()
		incarnation = "original"
		a.mu.Unlock()
		e.waitState(id, 0, procfleet.StateFailed)
	})
	t.Run("but not while two claim the host", func(t *testing.T) {
		t.Parallel()
		e := start(t)
		a := e.agent(host(1), accept)
		a.resend = unknown
		id := e.submit(2*time.Second, chunk(procfleet.ActionStart, host(1)))
		e.waitState(id, 0, procfleet.StateDelivered)
		e.store.present(host(1), "new", sinceNow, conflict)
		seen := e.store.called("DeliveredItems")
		e.eventually(func() bool { return e.store.called("DeliveredItems") > seen+2 }, "the sweep looks")
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
	if never.Code != procfleet.CodeAgentAbnormal || !strings.HasPrefix(never.Message, "no reply from the agent") {
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

func TestTheSweepRemovesEntriesWithoutATask(t *testing.T) {
	t.Parallel()
	e := start(t)
	young := procfleet.Number(time.Now().UnixMicro()).TaskID()
	ahead := procfleet.Number(time.Now().Add(time.Hour).UnixMicro()).TaskID() // the store's clock was
	for _, ghost := range []procfleet.TaskID{young, ahead} {
		if err := e.store.Revisit(t.Context(), taskstore.NextVisit{Task: ghost}); err != nil {
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

// sameShard stores a task of one item in a constant shard.
func (e *env) sameShard(edit func(*fakeTask)) procfleet.TaskID {
	for {
		task := e.store.create(procfleet.LaneSmall, time.Hour, chunk(procfleet.ActionStart, host(1)))
		if taskstore.Shard(task.Number) == 3 {
			e.store.change(task.ID, edit)
			return task.ID
		}
		e.store.remove(task.ID)
	}
}

func TestATaskThatNeedsAnUnavailableStreamDelaysNoOther(t *testing.T) {
	t.Parallel()
	e := start(t)
	if err := e.JS.DeleteStream(t.Context(), bus.StreamOps); err != nil {
		t.Fatal(err)
	}
	first := e.sameShard(func(f *fakeTask) {
		f.task.State, f.task.Dispatched, f.seqs[0] = procfleet.TaskRunning, true, 7
		f.task.CreatedAt = time.Now().Add(-time.Minute)
	})
	overdue := e.sameShard(func(f *fakeTask) { f.task.State, f.task.Deadline = procfleet.TaskRunning, time.Now() })
	e.waitState(overdue, 0, procfleet.StateUnreachable)
	e.eventually(func() bool { return e.store.settled(overdue) }, "the task ends")
	if state := e.state(first, 0); state != procfleet.StatePending {
		t.Errorf("the other task's item is %s", state)
	}
}

func TestAnOverloadIsWorkedOffWithoutPausesBetweenRounds(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *worker.Config) { c.Limits.SweepTasks, c.Timing.Sweep.Round = 1, 2*time.Second })
	var last procfleet.TaskID
	for range 60 { // two minutes of rounds
		last = e.sameShard(func(f *fakeTask) { f.task.State = procfleet.TaskFinished })
	}
	e.eventually(func() bool { return e.store.settled(last) }, "the last of many due tasks is visited")
}

func TestAResendRequestWithoutReplyDelaysNoOtherTaskOfTheShard(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *worker.Config) {
		c.Timing.Sweep.ResendWait, c.Timing.Sweep.LastCall, c.Timing.Sweep.LastCallMax = time.Hour, time.Hour, time.Hour
	})
	a := e.agent(host(1), accept)
	a.resend = func(*agentproto.Resend) *agentproto.ResendReply { return nil }
	e.sameShard(func(f *fakeTask) {
		f.task.State, f.task.Dispatched, f.task.Deadline = procfleet.TaskRunning, true, time.Now()
		f.states[0], f.done[0] = procfleet.StateDelivered, true
	})
	e.eventually(func() bool { return a.chased() > 0 }, "the silent agent is asked")
	other := e.sameShard(func(f *fakeTask) { f.task.State, f.task.Deadline = procfleet.TaskRunning, time.Now() })
	e.waitState(other, 0, procfleet.StateUnreachable)
}

// delivered sets all items of a task to delivered.
func delivered(f *fakeTask) {
	f.task.State, f.task.Dispatched, f.task.CreatedAt = procfleet.TaskRunning, true, time.Now().Add(-10*time.Second)
	f.states[0], f.done[0] = procfleet.StateDelivered, true
}

func TestTasksWhoseItemsHaveTimeLeftAreReadTogether(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.store.present(host(1), "i1")
	for range 5 {
		e.sameShard(delivered)
	}
	begun := e.store.called("TasksByID")
	e.eventually(func() bool { return e.store.called("TasksByID") > begun+5 }, "the tasks are visited")
	if n := e.store.called("Results"); n > 0 {
		t.Errorf("items of single tasks were read %d times", n)
	}
}

func TestATaskWhoseDeliveredItemsCannotBeReadDelaysNoOtherTaskOfTheShard(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.sameShard(func(f *fakeTask) { delivered(f); f.damaged = true })
	a := e.agent(host(1), accept)
	a.resend = func(r *agentproto.Resend) *agentproto.ResendReply { return &agentproto.ResendReply{Unknown: r.Items} }
	other := e.sameShard(func(f *fakeTask) { delivered(f); f.task.CreatedAt = time.Now().Add(-time.Hour) })
	e.waitState(other, 0, procfleet.StateFailed)
}

func TestATaskThatCannotBeReadDelaysNoOtherTaskOfTheShard(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.sameShard(func(f *fakeTask) { f.unreadable = true })
	other := e.sameShard(func(f *fakeTask) { f.task.State = procfleet.TaskFinished })
	e.eventually(func() bool { return e.store.settled(other) }, "the other task is visited")
}

// The clock of the store was an hour ahead when the tasks were accepted.
func TestTasksOfAClockThatSteppedBackAreReconciledAndEnd(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.agent(host(1), accept)
	left := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	ahead := func(f *fakeTask) {
		f.task.CreatedAt, f.task.Deadline = f.task.CreatedAt.Add(time.Hour), f.task.Deadline.Add(time.Hour)
	}
	e.store.change(left.ID, ahead)
	e.waitState(left.ID, 0, procfleet.StateDelivered) // published by the sweep
	brief := e.store.create(procfleet.LaneSmall, 500*time.Millisecond, chunk(procfleet.ActionStart, host(2)))
	e.store.change(brief.ID, ahead)
	e.waitState(brief.ID, 0, procfleet.StateUnreachable)
}

// If no replica confirms in time, the worker records the results again without an effect. It must still
// publish the completion of the task.
func TestACompletionThatWasNotConfirmedIsNotifiedWithoutTheSweep(t *testing.T) {
	t.Parallel()
	e := start(t, func(c *worker.Config) { c.Timing.Sweep.Round = time.Hour })
	e.agent(host(1), accept)
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.waitState(id, 0, procfleet.StateDelivered)
	e.store.mu.Lock()
	e.store.unconfirmed = 2
	e.store.mu.Unlock()
	e.receives(e.publish(id, host(1), succeeded(0)))
	e.eventually(func() bool { return e.store.settled(id) }, "the end is notified")
	if n := e.store.called("Record"); n != 3 {
		t.Errorf("results were recorded %d times, want 3", n)
	}
}

// If a visit has been due for an hour, as after an outage of all workers, the metric of the lag is an hour
// until the sweep has made the visit.
func TestTheLagOfTheSweepRisesWhileVisitsAreOverdue(t *testing.T) {
	t.Parallel()
	metrics := newSigning(t)
	lag := func() float64 {
		for line := range strings.Lines(metrics.page()) {
			if value, ok := strings.CutPrefix(line, "procfleet_worker_sweep_lag_seconds "); ok {
				seconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				if err != nil {
					t.Fatal(err)
				}
				return seconds
			}
		}
		return -1
	}
	e := start(t, func(c *worker.Config) { c.Meter = metrics.metrics.Meter("worker") })
	id := e.sameShard(func(f *fakeTask) { f.task.State, f.task.Dispatched = procfleet.TaskRunning, true })
	e.eventually(func() bool { return lag() >= 0 && lag() < 60 }, "there is no lag")
	e.store.mu.Lock()
	e.store.stuck = id
	e.store.visits[id] = time.Now().Add(-time.Hour)
	e.store.mu.Unlock()
	e.eventually(func() bool { return lag() >= 3600 }, "the lag is an hour")
	e.store.mu.Lock()
	e.store.stuck = ""
	e.store.mu.Unlock()
	e.eventually(func() bool { return lag() < 60 }, "the sweep has caught up")
}
