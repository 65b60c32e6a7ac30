package sweep

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/release"
)

// ageOf returns the age of a task. If the store's clock stepped back and the task was
// created in the future, it returns the size of the step.
func ageOf(task *procfleet.Task, now time.Time) time.Duration { return now.Sub(task.CreatedAt).Abs() }

// needsRepair reports whether chunks or results of an open task may be lost. Chunks
// matter only while items are pending; complete means that no result is missing.
func (s *Sweeper) needsRepair(task *procfleet.Task, age time.Duration, now time.Time, complete bool) bool {
	if !task.Dispatched {
		return age >= s.cfg.Timing.DispatchAfter && s.busAvailable(now)
	}
	return s.needsCancels(task, now) || s.needsQueue(task, age, now) || s.needsResults(task, age) && !complete
}

func (s *Sweeper) needsCancels(task *procfleet.Task, now time.Time) bool {
	return task.ItemCancels > 0 && s.busAvailable(now)
}

func (s *Sweeper) needsQueue(task *procfleet.Task, age time.Duration, now time.Time) bool {
	if task.Canceled() && task.Counts.Open() > 0 && s.busAvailable(now) {
		return true // the chunks that were begun are not done again
	}
	return age >= s.cfg.Timing.RequeueAfter && !task.Held() && task.Counts[procfleet.StatePending] > 0 && s.busAvailable(now)
}

func (s *Sweeper) needsResults(task *procfleet.Task, age time.Duration) bool {
	return age >= s.cfg.Timing.ResendAfter && task.Counts[procfleet.StateDelivered] > 0
}

// reconcile publishes missing chunks of an open task and requests missing results.
func (s *Sweeper) reconcile(ctx context.Context, r *repair, age time.Duration) error {
	if !r.task.Dispatched {
		return s.dispatch(ctx, &r.task, r.now)
	}
	if s.needsCancels(&r.task, r.now) {
		if err := s.requeueCancels(ctx, &r.task); err != nil {
			return err
		}
	}
	if s.needsQueue(&r.task, age, r.now) {
		if err := s.requeue(ctx, &r.task, r.now); err != nil {
			return err
		}
	}
	if s.needsResults(&r.task, age) {
		return s.requestResends(ctx, r, false)
	}
	return nil
}

// dispatch publishes a task whose dispatcher died before it had published all chunks.
func (s *Sweeper) dispatch(ctx context.Context, task *procfleet.Task, now time.Time) (err error) {
	ctx, span := s.traceSweep(ctx, task, metrics.SweepDispatch)
	defer func() { tracecontext.End(span, err) }()
	undone, err := s.cfg.Store.Undone(ctx, task.ID)
	if err != nil {
		return fmt.Errorf("list chunks: %w", err)
	}
	if err := s.cfg.Audit.Require(ctx, audit.OfTask(audit.Accepted, task)); err != nil {
		return err
	}
	if err := s.register(ctx, task); err != nil {
		return err
	}
	sequences, err := s.publish(ctx, task, undone, now)
	if err != nil {
		return err
	}
	all := make([]uint64, task.Chunks)
	for i, chunk := range undone {
		all[chunk.Chunk] = sequences[i]
	}
	if err := s.cfg.Store.Dispatched(ctx, task.ID, all); err != nil {
		return fmt.Errorf("store as dispatched: %w", err)
	}
	s.cfg.Metrics.SweepActions.Add(1, metrics.SweepDispatch)
	s.cfg.Log.WithField("task", task.ID).Info("task recovered from a dead dispatcher")
	return nil
}

// requeueCancels publishes the cancels of items that no worker has carried out. The stream drops
// those that it received a short time ago.
func (s *Sweeper) requeueCancels(ctx context.Context, task *procfleet.Task) error {
	var refs []bus.ChunkRef
	for chunk := range task.Chunks {
		canceled, err := s.cfg.Store.ItemCancels(ctx, task.ID, chunk)
		if err != nil {
			return fmt.Errorf("read the cancels of chunk %d: %w", chunk, err)
		}
		if len(canceled.Cancels) > 0 {
			cloud := canceled.Chunk.Items[0].Target.Host.Cloud
			refs = append(refs, bus.ChunkRef{Task: task.ID, Chunk: chunk, Lane: procfleet.LaneSmall, Cloud: cloud, Cancels: true})
		}
	}
	_, err := s.cfg.Bus.PublishChunks(ctx, refs, bus.CancelRound(task))
	return err
}

// maxRequeue bounds the chunks of a task that one visit looks up in the stream.
const maxRequeue = 256

// requeue republishes the chunks that are neither done nor queued.
func (s *Sweeper) requeue(ctx context.Context, task *procfleet.Task, now time.Time) (err error) {
	undone, err := s.cfg.Store.Undone(ctx, task.ID)
	if err != nil {
		return fmt.Errorf("list chunks: %w", err)
	}
	if len(undone) > maxRequeue { // a random subset, so that every chunk is checked eventually
		rand.Shuffle(len(undone), func(i, j int) { undone[i], undone[j] = undone[j], undone[i] }) //nolint:gosec // the order is not secret
		undone = undone[:maxRequeue]
	}
	lost, err := s.lost(ctx, undone)
	if err != nil || len(lost) == 0 {
		return err
	}
	ctx, span := s.traceSweep(ctx, task, metrics.SweepRequeue)
	defer func() { tracecontext.End(span, err) }()
	sequences, err := s.publish(ctx, task, lost, now)
	if err != nil {
		return err
	}
	for i, chunk := range lost {
		if err := s.cfg.Store.Republished(ctx, task.ID, chunk.Chunk, sequences[i]); err != nil {
			return fmt.Errorf("store chunk %d as published again: %w", chunk.Chunk, err)
		}
	}
	s.cfg.Metrics.SweepActions.Add(len(lost), metrics.SweepRequeue)
	s.cfg.Log.WithField("task", task.ID).WithField("chunks", len(lost)).Info("lost chunks republished")
	return nil
}

// lost returns the chunks that are not queued.
func (s *Sweeper) lost(ctx context.Context, undone []taskstore.UndoneChunk) ([]taskstore.UndoneChunk, error) {
	sequences := make([]uint64, len(undone))
	for i, chunk := range undone {
		sequences[i] = chunk.Sequence
	}
	queued, err := s.cfg.Bus.Queued(ctx, sequences)
	if err != nil {
		return nil, fmt.Errorf("search %d chunks: %w", len(undone), err)
	}
	var lost []taskstore.UndoneChunk
	for i, chunk := range undone {
		if !queued[i] {
			lost = append(lost, chunk)
		}
	}
	return lost, nil
}

func (s *Sweeper) publish(ctx context.Context, task *procfleet.Task, chunks []taskstore.UndoneChunk, now time.Time) ([]uint64, error) {
	refs := make([]bus.ChunkRef, len(chunks))
	for i, chunk := range chunks {
		cloud, err := s.cloud(ctx, task.ID, chunk.Chunk)
		if err != nil {
			return nil, err
		}
		refs[i] = bus.ChunkRef{Task: task.ID, Chunk: chunk.Chunk, Lane: task.Lane, Cloud: cloud}
	}
	// The time gives the messages new ids: the stream drops duplicate ids.
	sequences, err := s.cfg.Bus.PublishChunks(ctx, refs, strconv.FormatInt(now.UnixMilli(), 10))
	if errors.Is(err, bus.ErrFull) {
		return nil, fmt.Errorf("%d chunks wait for space in the stream: %w", len(refs), err)
	}
	return sequences, err
}

// cloud returns the cloud area of a chunk's hosts.
func (s *Sweeper) cloud(ctx context.Context, id procfleet.TaskID, chunk int) (procfleet.CloudArea, error) {
	items, err := s.cfg.Store.Chunk(ctx, id, chunk)
	if err != nil {
		return 0, fmt.Errorf("read chunk %d: %w", chunk, err)
	}
	return release.CloudOf(items), nil
}

// register stores the registrations of a task, because its dispatcher may have died
// before it stored them. Newer registrations are not replaced.
func (s *Sweeper) register(ctx context.Context, task *procfleet.Task) error {
	if !slices.ContainsFunc(task.Actions, procfleet.Action.Registers) {
		return nil
	}
	for chunk := range task.Chunks {
		items, err := s.cfg.Store.Chunk(ctx, task.ID, chunk)
		if err != nil {
			return fmt.Errorf("read chunk %d: %w", chunk, err)
		}
		ds := release.Definitions(items, task.Number.Time())
		if len(ds) == 0 {
			continue
		}
		if _, err := s.cfg.Registrar.Register(ctx, ds, true); err != nil {
			return fmt.Errorf("register the processes of chunk %d: %w", chunk, err)
		}
	}
	return nil
}
