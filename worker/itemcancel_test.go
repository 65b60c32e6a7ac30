package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// TestACancelOfHostsThatWasNotQueuedIsCarriedOut: the dispatcher died after it had stored the cancel
// and before it queued it. The sweep queues it, also while the task is paused.
func TestACancelOfHostsThatWasNotQueuedIsCarriedOut(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.stop()
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, hosts(2)...))
	e.store.change(task.ID, func(f *fakeTask) {
		f.task.Dispatched, f.task.ItemCancels, f.task.Seq = true, 1, 2
		f.task.Hold = procfleet.Hold{Kind: procfleet.HoldOperator, Since: time.Now()}
		f.cancels = []taskstore.ItemCancel{{Seq: 2, Items: []int{1}, Mode: procfleet.CancelDrain, Reason: "wrong version", Since: time.Now()}}
	})
	e.startWorker()
	e.waitState(task.ID, 1, procfleet.StateCancelled)
	if _, r := e.store.result(task.ID, 1); !strings.Contains(r.Message, "before it was sent to the agent: wrong version") {
		t.Errorf("canceled: %+v", r)
	}
	e.eventually(func() bool { return e.store.called("ItemsCanceled") > 0 }, "the cancel is stored as carried out")
	if state, r := e.store.result(task.ID, 0); state != procfleet.StatePending {
		t.Errorf("the other item ended as %+v", r)
	}
}
