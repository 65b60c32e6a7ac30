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
	called, known := sh.overdue[task.ID]
	if !known && task.Counts[procfleet.StateDelivered] > 0 {
		delete(sh.cursors, task.ID)
		if err := sh.chase(ctx, task, everyItem); err != nil {
			return err
		}
		if sh.cursors[task.ID] == "" { // everybody was asked
			sh.overdue[task.ID] = now
		}
		return sh.revisit(ctx, task.ID, sh.timing.Sweep.LastCall)
	}
	if left := sh.timing.Sweep.LastCall - now.Sub(called); known && left > 0 {
		return sh.revisit(ctx, task.ID, left)
	}
	for _, state := range []procfleet.State{procfleet.StateDelivered, procfleet.StatePending} {
		if err := sh.endAll(ctx, task, state); err != nil {
			return err
		}
	}
	// Completing the task had its end told; the next visit makes sure of it.
	return sh.revisit(ctx, task.ID, sh.timing.Sweep.RevisitMin)
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
		applied, err := sh.recorder.recordOf(ctx, task.ID, results)
		if err != nil {
			return err
		}
		sh.metrics.sweep(ctx, "overdue", applied)
		// What was applied has left the state, so the next page is the first.
		if applied == 0 {
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
