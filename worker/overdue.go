package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// giveUp ends an overdue task. The agents of silent items are asked once more
// to send their results; what they send is collected as always until the next
// visit.
func (sh *shard) giveUp(ctx context.Context, r *repair, late time.Duration) error {
	if late < sh.timing.Sweep.LastCallMax {
		left, err := sh.lastCall(ctx, r)
		if err != nil {
			return err
		}
		if left > 0 {
			return sh.revisit(ctx, r.task.ID, left)
		}
	}
	ctx, span := sh.traceSweep(ctx, &r.task, sweepOverdue)
	defer span.End()
	if err := sh.endDelivered(ctx, &r.task); err != nil {
		return err
	}
	// Completing the task sends its notification; the next visit makes sure of it.
	return sh.endPending(ctx, r)
}

// lastCall asks the agents of an overdue task, over as many visits as that
// takes, and returns how long to wait from now; 0 when the wait is over.
func (sh *shard) lastCall(ctx context.Context, r *repair) (time.Duration, error) {
	if !r.called.IsZero() {
		return sh.timing.Sweep.LastCall - r.now.Sub(r.called), nil
	}
	if !r.begun { // what was asked before the deadline is asked again
		r.begun, r.cursor, r.denied = true, "", map[int]bool{}
	}
	if r.task.Counts[procfleet.StateDelivered] > 0 {
		if err := sh.requestResends(ctx, r, everyItem); err != nil {
			return 0, err
		}
		r.moved = true
		if r.cursor != "" {
			return sh.timing.Sweep.Round, nil
		}
	}
	if r.task.Counts[procfleet.StatePending] > 0 {
		if more, err := sh.askBegun(ctx, r); err != nil || more {
			return sh.timing.Sweep.Round, err
		}
	}
	if !r.moved {
		return 0, nil
	}
	r.called = r.now
	return sh.timing.Sweep.LastCall, nil
}

// askBegun asks the agents of pending items whose chunk was begun: a worker
// that died may have delivered them without storing that. Those that an agent
// has are delivered; those that it denies were never delivered. It reports
// whether more chunks are left for the next visit.
func (sh *shard) askBegun(ctx context.Context, r *repair) (more bool, err error) {
	undone, err := sh.store.Undone(ctx, r.task.ID)
	if err != nil {
		return false, fmt.Errorf("list chunks: %w", err)
	}
	asked := 0
	for _, duty := range undone {
		if duty.Begun.IsZero() || duty.Chunk < r.chunk {
			continue
		}
		if asked == resendPages {
			return true, nil
		}
		rows, err := sh.pending(ctx, &r.task, duty.Chunk)
		if err != nil {
			return false, err
		}
		if len(rows) > 0 {
			asked++
			if err := sh.askPending(ctx, r, duty.Chunk, byHost(rows)); err != nil {
				return false, err
			}
		}
		r.chunk = duty.Chunk + 1
	}
	return false, nil
}

func (sh *shard) askPending(ctx context.Context, r *repair, chunk int, hosts []*itemsOfHost) error {
	sh.metrics.sweep(ctx, sweepResend, len(hosts))
	var known []int
	for _, reply := range sh.askResend(ctx, &r.task, hosts) {
		known = append(known, reply.known...)
		for _, item := range reply.unknown {
			r.denied[item] = true
		}
	}
	if len(known) == 0 {
		return nil
	}
	if err := sh.store.Delivered(ctx, r.task.ID, chunk, known, false); err != nil {
		return fmt.Errorf("store items of chunk %d as delivered: %w", chunk, err)
	}
	r.moved = true
	return nil
}

// pending returns the pending items of a chunk.
func (sh *shard) pending(ctx context.Context, task *procfleet.Task, chunk int) ([]procfleet.ItemResult, error) {
	rows, err := sh.store.Chunk(ctx, task.ID, chunk)
	if err != nil {
		return nil, fmt.Errorf("read chunk %d: %w", chunk, err)
	}
	pending := rows[:0]
	for i := range rows {
		if rows[i].State == procfleet.StatePending {
			pending = append(pending, rows[i])
		}
	}
	return pending, nil
}

// endDelivered ends every delivered item as timed out.
func (sh *shard) endDelivered(ctx context.Context, task *procfleet.Task) error {
	return sh.endAll(ctx, task, procfleet.StateDelivered, func(item *procfleet.ItemResult) procfleet.Result {
		return serverResult(item.Index, procfleet.CodeFailed, procfleet.ReasonTimedOut,
			fmt.Sprintf("%s: timed out after %v, agent of host %s accepted, no result: look with a status whether it happened",
				item.Item.Action, allowed(task), item.Item.Target.Key()), sh.clock.now())
	})
}

// endPending ends every pending item as unreachable. It was never delivered if
// its chunk was never begun, or if its agent says so.
func (sh *shard) endPending(ctx context.Context, r *repair) error {
	undone, err := sh.store.Undone(ctx, r.task.ID)
	if err != nil {
		return fmt.Errorf("list chunks: %w", err)
	}
	for _, duty := range undone {
		rows, err := sh.pending(ctx, &r.task, duty.Chunk)
		if err != nil {
			return err
		}
		results := make([]procfleet.Result, len(rows))
		for i := range rows {
			results[i] = sh.unreachable(&r.task, &rows[i], duty.Begun.IsZero() || r.denied[rows[i].Index])
		}
		if err := sh.end(ctx, &r.task, results); err != nil {
			return err
		}
	}
	// A store that forgot its last moments in a fail-over may have pending
	// items in a chunk that is done.
	return sh.endAll(ctx, &r.task, procfleet.StatePending, func(item *procfleet.ItemResult) procfleet.Result {
		return sh.unreachable(&r.task, item, r.denied[item.Index])
	})
}

func (sh *shard) end(ctx context.Context, task *procfleet.Task, results []procfleet.Result) error {
	if len(results) == 0 {
		return nil
	}
	recorded, err := sh.recorder.recordOf(ctx, task.ID, results)
	if err == nil {
		sh.metrics.sweep(ctx, sweepOverdue, recorded.Applied)
	}
	return err
}

// endAll gives every item in an open state its server-made end.
func (sh *shard) endAll(ctx context.Context, task *procfleet.Task, state procfleet.State, result func(*procfleet.ItemResult) procfleet.Result) error {
	for cursor := ""; ; {
		page, next, err := sh.store.Results(ctx, task.ID, taskstore.ResultQuery{State: state, Cursor: cursor, Limit: resendPage})
		if err != nil {
			return fmt.Errorf("list %s items: %w", state, err)
		}
		if len(page) == 0 {
			return nil
		}
		results := make([]procfleet.Result, len(page))
		for i := range page {
			results[i] = result(&page[i])
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

// allowed is the time that a task was given.
func allowed(task *procfleet.Task) time.Duration {
	return task.Deadline.Sub(task.CreatedAt).Round(time.Millisecond)
}

func (sh *shard) unreachable(task *procfleet.Task, item *procfleet.ItemResult, never bool) procfleet.Result {
	host := item.Item.Target.Key()
	message := fmt.Sprintf("never delivered to host %s within %v: see that workers run and that the host's agent is connected, then repeat", host, allowed(task))
	if !never {
		message = fmt.Sprintf("no reply from the agent of host %s within %v, unknown whether it received the command: query a status, then repeat if needed", host, allowed(task))
	}
	return serverResult(item.Index, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, message, sh.clock.now())
}
