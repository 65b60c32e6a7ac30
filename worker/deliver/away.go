package deliver

import (
	"context"
	"fmt"
	"time"
)

// awayItems are items that wait for their hosts, as indexes in the task.
type awayItems struct {
	unsent []int
	sent   []int // an agent may have accepted them
}

// mayWait reports whether items of the task wait for hosts without an agent.
func (dl *delivery) mayWait(now time.Time) bool {
	task := &dl.begun.Task
	return task.Rollout != nil && now.Before(task.CreatedAt.Add(task.Rollout.Plan.Queue))
}

// wait lets the items of a host wait. If the lease has ended, another worker may have begun them.
func (dl *delivery) wait(h *hostRequest, now time.Time) {
	list := &dl.away.unsent
	if dl.mayHaveAccepted(h) || !now.Before(dl.leased.Add(dl.cfg.Timing.AcceptWindow)) {
		list = &dl.away.sent
	}
	for _, i := range h.todo {
		*list = append(*list, dl.begun.Chunk.First+i)
	}
	dl.trace.settled(h)
	h.todo, h.part = nil, 0
	dl.settle(h)
	if dl.storeBy.IsZero() {
		dl.storeBy = now.Add(storeWithin)
		dl.wakeBy(dl.storeBy)
	}
}

// storeAway stores which items wait. Their places in the window are free after that.
func (dl *delivery) storeAway(ctx context.Context) error {
	for _, list := range []*[]int{&dl.away.unsent, &dl.away.sent} {
		if len(*list) == 0 {
			continue
		}
		dl.cfg.Reached(PointAway)
		sent := list == &dl.away.sent
		err := dl.cfg.Calls.Retry(ctx, func(ctx context.Context) error {
			return dl.cfg.Store.Away(ctx, dl.ref.Task, dl.ref.Chunk, *list, sent)
		})
		if err != nil {
			return fmt.Errorf("let %d items of chunk %s/%d wait: %w", len(*list), dl.ref.Task, dl.ref.Chunk, err)
		}
		*list = nil
		dl.cfg.Recorder.Hints.Change(dl.ref.Task)
		dl.cfg.Rollouts.Soon(dl.ref.Task)
	}
	return nil
}
