package sweep

import (
	"context"
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/metrics"
)

// giveUp ends an overdue task. Its first call only requests resends of the missing
// results and postpones the task to a later visit, which ends it.
func (s *Sweeper) giveUp(ctx context.Context, r *repair, late time.Duration) error {
	if r.task.Rollout != nil {
		a, err := s.cfg.Releaser.Advance(ctx, r.task.ID, taskstore.Advance{All: true})
		if err != nil {
			return fmt.Errorf("list the open grants: %w", err)
		}
		r.grants = a.Items
	}
	if late < s.cfg.Timing.LastCallMax {
		left, err := s.lastCall(ctx, r)
		if err != nil {
			return err
		}
		if left > 0 {
			return s.revisit(ctx, r.task.ID, left)
		}
	}
	ctx, span := s.traceSweep(ctx, &r.task, metrics.SweepOverdue)
	defer span.End()
	if err := s.endDelivered(ctx, &r.task); err != nil {
		return err
	}
	if r.task.Held() && r.task.Counts[procfleet.StateDelivered] > 0 {
		return nil // the pending items have until the hold limit; see deadline
	}
	// A completed task is notified by Record; the next visit retries that.
	return s.endPending(ctx, r)
}

// lastCall requests resends for an overdue task, over several visits if needed. It
// returns how long to wait until the next visit; 0 or less ends the task.
func (s *Sweeper) lastCall(ctx context.Context, r *repair) (time.Duration, error) {
	if !r.called.IsZero() {
		return s.cfg.Timing.LastCall - time.Since(r.called), nil
	}
	if !r.begun { // start over: requests before the deadline do not count
		r.begun, r.cursor, r.denied = true, "", map[int]bool{}
	}
	if r.task.Counts[procfleet.StateDelivered] > 0 {
		if err := s.requestResends(ctx, r, true); err != nil {
			return 0, err
		}
		r.moved = true
		if r.cursor != "" {
			return s.cfg.Timing.Round, nil
		}
	}
	if r.task.Counts[procfleet.StatePending] > 0 {
		if more, err := s.requestPending(ctx, r); err != nil || more {
			return s.cfg.Timing.Round, err
		}
	}
	if !r.moved {
		return 0, nil
	}
	r.called = time.Now()
	return s.cfg.Timing.LastCall, nil
}

// requestPending requests results of pending items in chunks that were begun: a worker
// may have delivered them and died before storing that. Items that an agent knows are
// stored as delivered, and items that it denies are recorded in r.denied. It reports
// whether chunks are left for the next visit.
func (s *Sweeper) requestPending(ctx context.Context, r *repair) (more bool, err error) {
	undone, err := s.cfg.Store.Undone(ctx, r.task.ID)
	if err != nil {
		return false, fmt.Errorf("list chunks: %w", err)
	}
	requested := 0
	for _, chunk := range undone {
		if chunk.Begun.IsZero() || chunk.Chunk < r.chunk {
			continue
		}
		if requested == resendPages {
			return true, nil
		}
		rows, err := s.pending(ctx, &r.task, chunk.Chunk)
		if err != nil {
			return false, err
		}
		if len(rows) > 0 {
			requested++
			if err := s.requestPendingOfChunk(ctx, r, chunk.Chunk, byHost(rows)); err != nil {
				return false, err
			}
		}
		r.chunk = chunk.Chunk + 1
	}
	return false, nil
}

func (s *Sweeper) requestPendingOfChunk(ctx context.Context, r *repair, chunk int, hosts []*itemsOfHost) error {
	s.cfg.Metrics.SweepActions.Add(len(hosts), metrics.SweepResend)
	var known []int
	for _, reply := range s.sendResends(ctx, &r.task, hosts) {
		known = append(known, reply.known...)
		for _, item := range reply.unknown {
			r.denied[item] = true
		}
	}
	if len(known) == 0 {
		return nil
	}
	if err := s.cfg.Store.Delivered(ctx, r.task.ID, chunk, known, false); err != nil {
		return fmt.Errorf("store items of chunk %d as delivered: %w", chunk, err)
	}
	r.moved = true
	return nil
}

// pending returns the pending items of a chunk.
func (s *Sweeper) pending(ctx context.Context, task *procfleet.Task, chunk int) ([]procfleet.ItemResult, error) {
	rows, err := s.cfg.Store.Chunk(ctx, task.ID, chunk)
	if err != nil {
		return nil, fmt.Errorf("read chunk %d: %w", chunk, err)
	}
	return inState(rows, procfleet.StatePending), nil
}

func (s *Sweeper) endDelivered(ctx context.Context, task *procfleet.Task) error {
	return s.endAll(ctx, task, procfleet.StateDelivered, func(item *procfleet.ItemResult) procfleet.Result { return s.timedOut(task, item) })
}

func (s *Sweeper) timedOut(task *procfleet.Task, item *procfleet.ItemResult) procfleet.Result {
	message := fmt.Sprintf("%s: timed out after %v, agent of host %s accepted, no result: query the status to see whether it happened",
		item.Item.Action, allowed(task), item.Item.Target.Key())
	return agentlink.ServerResult(item.Index, procfleet.CodeFailed, procfleet.ReasonTimedOut, message, s.cfg.Clock.Now())
}

// endPending ends all pending items with the reason unreachable. The message of an item is
// "never delivered" if no worker began its chunk or if its agent replied that it does not
// know the item; otherwise it is "unknown whether it received the command".
func (s *Sweeper) endPending(ctx context.Context, r *repair) error {
	undone, err := s.cfg.Store.Undone(ctx, r.task.ID)
	if err != nil {
		return fmt.Errorf("list chunks: %w", err)
	}
	for _, chunk := range undone {
		rows, err := s.pending(ctx, &r.task, chunk.Chunk)
		if err != nil {
			return err
		}
		results := make([]procfleet.Result, len(rows))
		for i := range rows {
			results[i] = s.undelivered(r, &rows[i], chunk.Begun.IsZero())
		}
		if _, err := s.end(ctx, &r.task, results); err != nil {
			return err
		}
	}
	// After a fail-over that lost writes, chunks that are done may have pending items.
	return s.endAll(ctx, &r.task, procfleet.StatePending, func(item *procfleet.ItemResult) procfleet.Result {
		return s.undelivered(r, item, false)
	})
}

// undelivered returns the result of a pending item. never means that no worker has begun its chunk.
func (s *Sweeper) undelivered(r *repair, item *procfleet.ItemResult, never bool) procfleet.Result {
	if p := r.task.Rollout; p != nil && r.grantOf(item.Index) == nil {
		message := fmt.Sprintf("the rollout ended %v after its acceptance and had not released host %s", allowed(&r.task), item.Item.Target.Key())
		if p.Hold.Kind != "" {
			message += fmt.Sprintf(": it was held since %s (%s)", p.Hold.Since.Format(time.RFC3339), p.Hold.Kind)
		}
		return agentlink.ServerResult(item.Index, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, message+"; repeat it", s.cfg.Clock.Now())
	}
	return s.unreachable(&r.task, item, never || r.denied[item.Index])
}

// end stores results made by the server and returns how many were applied.
func (s *Sweeper) end(ctx context.Context, task *procfleet.Task, results []procfleet.Result) (applied int, err error) {
	if len(results) == 0 {
		return 0, nil
	}
	recorded, err := s.cfg.Recorder.Record(ctx, task.ID, results)
	if err == nil {
		s.cfg.Metrics.SweepActions.Add(recorded.Applied, metrics.SweepOverdue)
	}
	return recorded.Applied, err
}

// endAll stores a result made by the server for every item in the given open state.
func (s *Sweeper) endAll(ctx context.Context, task *procfleet.Task, state procfleet.State, result func(*procfleet.ItemResult) procfleet.Result) error {
	for cursor := ""; ; {
		page, next, err := s.cfg.Store.Results(ctx, task.ID, taskstore.ResultQuery{State: state, Cursor: cursor, Limit: resendPage})
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
		applied, err := s.end(ctx, task, results)
		if err != nil {
			return err
		}
		// Items with a result have left this state, so the first page has new items.
		if applied == 0 {
			if cursor = next; cursor == "" {
				return nil
			}
		}
	}
}

func allowed(task *procfleet.Task) time.Duration {
	return task.Deadline.Sub(task.CreatedAt).Round(time.Millisecond)
}

func (s *Sweeper) unreachable(task *procfleet.Task, item *procfleet.ItemResult, never bool) procfleet.Result {
	host := item.Item.Target.Key()
	message := fmt.Sprintf("never delivered to host %s within %v: see that workers run and that the host's agent is connected, then repeat", host, allowed(task))
	switch {
	case !never:
		message = fmt.Sprintf("no reply from the agent of host %s within %v, unknown whether it received the command: query the status, then repeat if needed", host, allowed(task))
	case task.Held():
		message = fmt.Sprintf("never delivered to host %s: the task was paused at %s and not resumed by half of its retention; repeat it", host, task.Hold.Since.Format(time.RFC3339))
	}
	return agentlink.ServerResult(item.Index, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, message, s.cfg.Clock.Now())
}
