package worker_test

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/worker"
)

func TestManyRestartsOfWorkersDoNotIsolateAChunk(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.agent(host(1), accept)
	e.store.present(host(2), "i2") // in grace
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, hosts(2)...))
	stop := e.stop
	for n := range 7 {
		e.eventually(func() bool { return e.store.called("Begin") > n }, "the chunk is begun")
		seen := e.store.called("Presences")
		e.eventually(func() bool { return e.store.called("Presences") > seen+3 }, "the chunk is parked")
		stop()
		_, stop = e.startWorker()
	}
	e.waitState(id, 0, procfleet.StateDelivered)
	e.agent(host(2), accept)
	e.waitState(id, 1, procfleet.StateDelivered)
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "the chunk is done")
}

func TestAnItemThatWasAcceptedIsLeftToItsAgent(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.stop()
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, hosts(2)...))
	e.store.change(task.ID, func(f *fakeTask) { // a worker died before the second host answered
		f.begun[0], f.states[0] = time.Now().Add(-time.Second), procfleet.StateDelivered
	})
	e.queue(task)
	e.agent(host(2), accept)
	e.startWorker() // while the agent of the first is disconnected
	e.waitState(task.ID, 1, procfleet.StateDelivered)
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "the chunk is done")
	if state, r := e.store.result(task.ID, 0); state != procfleet.StateDelivered {
		t.Errorf("the accepted item ended as %+v", r)
	}
}

func TestAChunkDeliveredTooOftenKeepsWhatAgentsAccepted(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.stop()
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, hosts(2)...))
	e.store.change(task.ID, func(f *fakeTask) { f.states[0] = procfleet.StateDelivered })
	e.queue(task)
	e.startWorker(poisoned)
	e.waitState(task.ID, 1, procfleet.StateFailed)
	e.eventually(func() bool { return e.queued(bus.StreamOps) == 0 }, "the chunk is gone")
	if state, r := e.store.result(task.ID, 0); state != procfleet.StateDelivered {
		t.Errorf("the accepted item ended as %+v", r)
	}
}

func TestAFinishedChunkThatWasNotStoredAsDoneIsStored(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.stop()
	task := e.store.create(procfleet.LaneSmall, time.Minute,
		chunk(procfleet.ActionStart, host(1)), chunk(procfleet.ActionStart, host(2)))
	e.store.change(task.ID, func(f *fakeTask) { f.states[0] = procfleet.StateSucceeded })
	e.queue(task)
	e.store.present(host(2), "i2") // in grace, so the task stays open
	e.startWorker()
	e.eventually(func() bool {
		undone, err := e.store.Undone(t.Context(), task.ID)
		return err == nil && len(undone) == 1 && undone[0].Chunk == 1
	}, "the first chunk is done")
}

// The consumers have a short AckWait, which the worker reads from them.
func TestAChunkInGraceIsNotRedelivered(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.stop()
	if err := bus.Ensure(t.Context(), e.JS, bus.Options{AckWait: 2 * time.Second}); err != nil {
		t.Fatal(err)
	}
	// The grace must be long enough for a machine that is busy with other tests.
	e.startWorker(unswept, func(c *worker.Config) { c.Timing.Deliver.Grace = time.Minute })
	e.store.present(host(1), "i1")
	id := e.submit(time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.eventually(func() bool { return e.store.called("Presences") > 80 }, "the chunk is held for longer than AckWait")
	// With another instance the outcome might be "agent was reinstalled, outcome unknown".
	(&fakeAgent{t: t, conn: e.Conn, host: host(1), instance: "i1", reply: accept}).listen()
	e.waitState(id, 0, procfleet.StateDelivered)
	if n := e.store.called("Begin"); n != 1 {
		t.Errorf("the chunk was begun %d times", n)
	}
}
