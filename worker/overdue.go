package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// giveUp ends an overdue task. The agents of silent items get a last call
// first; what they send is collected as always until the next visit.
func (sh *shard) giveUp(ctx context.Context, task *procfleet.Task, now time.Time) error {
	if task.Counts[procfleet.StateDelivered] > 0 && now.Sub(task.Deadline) < sh.timing.Sweep.LastCallMax {
		left, err := sh.lastCall(ctx, task, now)
		if err != nil {
			return err
		}
		if left > 0 {
			return sh.revisit(ctx, task.ID, left)
		}
	}
	ctx, span := sh.traceSweep(ctx, task, sweepOverdue)
	defer span.End()
	for _, state := range []procfleet.State{procfleet.StateDelivered, procfleet.StatePending} {
		if err := sh.endAll(ctx, task, state); err != nil {
			return err
		}
	}
	// Completing the task had its end told; the next visit makes sure of it.
	return sh.revisit(ctx, task.ID, sh.timing.Sweep.RevisitMin)
}

// lastCall asks the agents of an overdue task, over as many visits as that
// takes, and returns how long to wait from now; 0 when the wait is over. What
// it remembers may be lost with the lease: then it begins again.
func (sh *shard) lastCall(ctx context.Context, task *procfleet.Task, now time.Time) (time.Duration, error) {
	called, begun := sh.overdue[task.ID]
	if !called.IsZero() {
		return sh.timing.Sweep.LastCall - now.Sub(called), nil
	}
	if !begun { // what was asked before the deadline is asked again
		delete(sh.cursors, task.ID)
		sh.overdue[task.ID] = time.Time{}
	}
	if err := sh.chase(ctx, task, everyItem); err != nil {
		return 0, err
	}
	if sh.cursors[task.ID] != "" {
		return sh.timing.Sweep.Round, nil
	}
	sh.overdue[task.ID] = now
	return sh.timing.Sweep.LastCall, nil
}

// endAll gives every item in an open state its server-made end.
func (sh *shard) endAll(ctx context.Context, task *procfleet.Task, state procfleet.State) error {
	for cursor := ""; ; {
		page, next, err := sh.store.Results(ctx, task.ID, taskstore.ResultQuery{State: state, Cursor: cursor, Limit: chasePage})
		if err != nil {
			return fmt.Errorf("list %s items: %w", state, err)
		}
		if len(page) == 0 {
			return nil
		}
		results := make([]procfleet.Result, len(page))
		for i := range page {
			results[i] = overdueResult(&page[i], task, sh.clock.now())
		}
		recorded, err := sh.recorder.recordOf(ctx, task.ID, results)
		if err != nil {
			return err
		}
		sh.metrics.sweep(ctx, sweepOverdue, recorded.Applied)
		// What was applied has left the state, so the next page is the first.
		if recorded.Applied == 0 {
			if cursor = next; cursor == "" {
				return nil
			}
		}
	}
}

func overdueResult(item *procfleet.ItemResult, task *procfleet.Task, now time.Time) procfleet.Result {
	host, action := item.Item.Target.Key(), item.Item.Action
	allowed := task.Deadline.Sub(task.CreatedAt).Round(time.Millisecond)
	if item.State == procfleet.StateDelivered {
		return serverResult(item.Index, procfleet.CodeFailed, procfleet.ReasonTimedOut,
			fmt.Sprintf("%s: timed out after %v, agent of host %s accepted, no result: look with a status whether it happened", action, allowed, host), now)
	}
	return serverResult(item.Index, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable,
		fmt.Sprintf("never delivered to host %s within %v: see that workers run and that the host's agent is connected, then repeat", host, allowed), now)
}
