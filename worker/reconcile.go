package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
)

// ageOf returns the age of a task. A task that was created later than now, by a
// clock that stepped back since, is as old as that step.
func ageOf(task *procfleet.Task, now time.Time) time.Duration { return now.Sub(task.CreatedAt).Abs() }

// needsRepair reports whether an open task may have lost something. A task
// whose items are all at their agents needs no chunk in the stream; a complete
// one misses no result.
func (sh *shard) needsRepair(task *procfleet.Task, age time.Duration, now time.Time, complete bool) bool {
	if !task.Dispatched {
		return age >= sh.timing.Sweep.DispatchAfter && sh.busThere(now)
	}
	return sh.needsQueue(task, age, now) || sh.needsResults(task, age) && !complete
}

func (sh *shard) needsQueue(task *procfleet.Task, age time.Duration, now time.Time) bool {
	return age >= sh.timing.Sweep.RequeueAfter && task.Counts[procfleet.StatePending] > 0 && sh.busThere(now)
}

func (sh *shard) needsResults(task *procfleet.Task, age time.Duration) bool {
	return age >= sh.timing.Sweep.ChaseAfter && task.Counts[procfleet.StateDelivered] > 0
}

// reconcile does for an open task what a lost process or message left undone.
func (sh *shard) reconcile(ctx context.Context, r *repair, age time.Duration) error {
	if !r.task.Dispatched {
		return sh.dispatch(ctx, &r.task, r.now)
	}
	if sh.needsQueue(&r.task, age, r.now) {
		if err := sh.requeue(ctx, &r.task, r.now); err != nil {
			return err
		}
	}
	if sh.needsResults(&r.task, age) {
		return sh.requestResends(ctx, r, onlyLost(&r.task, r.now))
	}
	return nil
}

// round names a publication by the sweep, so that the stream does not take it
// for a repeat of an earlier one.
func round(now time.Time) string { return strconv.FormatInt(now.UnixMilli(), 10) }

// dispatch finishes what the task's dispatcher began.
func (sh *shard) dispatch(ctx context.Context, task *procfleet.Task, now time.Time) (err error) {
	ctx, span := sh.traceSweep(ctx, task, sweepDispatch)
	defer func() { tracecontext.End(span, err) }()
	undone, err := sh.store.Undone(ctx, task.ID)
	if err != nil {
		return fmt.Errorf("list chunks: %w", err)
	}
	if err := sh.audit.Require(ctx, audit.OfTask(audit.Accepted, task)); err != nil {
		return err
	}
	if err := sh.register(ctx, task); err != nil {
		return err
	}
	sequences, err := sh.publish(ctx, task, undone, now)
	if err != nil {
		return err
	}
	all := make([]uint64, task.Chunks)
	for i, duty := range undone {
		all[duty.Chunk] = sequences[i]
	}
	if err := sh.store.Dispatched(ctx, task.ID, all); err != nil {
		return fmt.Errorf("note as dispatched: %w", err)
	}
	sh.metrics.sweep(ctx, sweepDispatch, 1)
	sh.log.WithField("task", task.ID).Info("task recovered from a dead dispatcher")
	return nil
}

// maxRequeue bounds the chunks of one task that one visit looks for.
const maxRequeue = 256

// requeue publishes again the chunks that are neither done nor queued.
func (sh *shard) requeue(ctx context.Context, task *procfleet.Task, now time.Time) (err error) {
	undone, err := sh.store.Undone(ctx, task.ID)
	if err != nil {
		return fmt.Errorf("list chunks: %w", err)
	}
	if len(undone) > maxRequeue { // another part each time
		rand.Shuffle(len(undone), func(i, j int) { undone[i], undone[j] = undone[j], undone[i] }) //nolint:gosec // an order is no secret
		undone = undone[:maxRequeue]
	}
	lost, err := sh.lost(ctx, undone)
	if err != nil || len(lost) == 0 {
		return err
	}
	ctx, span := sh.traceSweep(ctx, task, sweepRequeue)
	defer func() { tracecontext.End(span, err) }()
	sequences, err := sh.publish(ctx, task, lost, now)
	if err != nil {
		return err
	}
	for i, duty := range lost {
		if err := sh.store.Republished(ctx, task.ID, duty.Chunk, sequences[i]); err != nil {
			return fmt.Errorf("note chunk %d as published again: %w", duty.Chunk, err)
		}
	}
	sh.metrics.sweep(ctx, sweepRequeue, len(lost))
	sh.log.WithField("task", task.ID).WithField("chunks", len(lost)).Info("lost chunks republished")
	return nil
}

// lost returns the chunks that are not queued.
func (sh *shard) lost(ctx context.Context, undone []taskstore.UndoneChunk) ([]taskstore.UndoneChunk, error) {
	sequences := make([]uint64, len(undone))
	for i, duty := range undone {
		sequences[i] = duty.Sequence
	}
	queued, err := sh.bus.Queued(ctx, sequences)
	if err != nil {
		return nil, fmt.Errorf("look for %d chunks: %w", len(undone), err)
	}
	var lost []taskstore.UndoneChunk
	for i, duty := range undone {
		if !queued[i] {
			lost = append(lost, duty)
		}
	}
	return lost, nil
}

func (sh *shard) publish(ctx context.Context, task *procfleet.Task, duties []taskstore.UndoneChunk, now time.Time) ([]uint64, error) {
	refs := make([]bus.ChunkRef, len(duties))
	for i, duty := range duties {
		cloud, err := sh.cloud(ctx, task.ID, duty.Chunk)
		if err != nil {
			return nil, err
		}
		refs[i] = bus.ChunkRef{Task: task.ID, Chunk: duty.Chunk, Lane: task.Lane, Cloud: cloud}
	}
	sequences, err := sh.bus.PublishChunks(ctx, refs, round(now))
	if errors.Is(err, bus.ErrFull) {
		return nil, fmt.Errorf("%d chunks wait for room in the stream: %w", len(refs), err)
	}
	return sequences, err
}

// cloud is the cloud area of a chunk: that of its hosts.
func (sh *shard) cloud(ctx context.Context, id procfleet.TaskID, chunk int) (procfleet.CloudArea, error) {
	items, err := sh.store.Chunk(ctx, id, chunk)
	if err != nil {
		return 0, fmt.Errorf("read chunk %d: %w", chunk, err)
	}
	for i := range items {
		if host := items[i].Item.Target.Host; !host.IsZero() {
			return host.Cloud, nil
		}
	}
	return 0, nil
}
