package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
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
		c.Store, c.Timing.Sweep.ChaseAfter = store, time.Hour
	})
	e.agent(host(1), accept)
	id := e.submit(2*time.Second, chunk(procfleet.ActionStart, host(1)))
	e.waitState(id, 0, procfleet.StateDelivered)
	e.publish(id, host(1), succeeded(0))
	e.eventually(store.lost.Load, "the result is lost")
	e.waitState(id, 0, procfleet.StateTimedOut)
	e.eventually(func() bool { return e.store.settled(id) }, "the task ends")
}
