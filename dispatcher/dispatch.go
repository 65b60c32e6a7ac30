package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

// firstRound is the publication round of acceptance. A repeated request publishes in
// the same round, so that the stream drops the duplicates.
const firstRound = "0"

// chunkRefs returns what acceptance publishes: all chunks, or the request to release the first
// units of a rollout.
func chunkRefs(id procfleet.TaskID, draft drafted) []bus.ChunkRef {
	if draft.Rollout != nil {
		return advance(id)
	}
	refs := make([]bus.ChunkRef, len(draft.Chunks))
	for i := range draft.Chunks {
		refs[i] = bus.ChunkRef{Task: id, Chunk: i, Lane: draft.Lane, Cloud: draft.Chunks[i].Cloud}
	}
	return refs
}

func advance(id procfleet.TaskID) []bus.ChunkRef {
	return []bus.ChunkRef{{Task: id, Lane: procfleet.LaneSmall, Advances: true}}
}

// dispatch audits a new task, registers its specs, queues its chunks and marks it as
// dispatched. After an error it rejects the task. It writes the audit record first,
// because agents may begin as soon as the chunks are queued.
func (s *submitter) dispatch(ctx context.Context, task *procfleet.Task, draft drafted) error {
	err := s.audit(ctx, task, draft.Chunks)
	if err == nil {
		s.cfg.Reached(PointAudited)
		err = s.register(ctx, draft.definitions, task.Number.Time())
	}
	var sequences []uint64
	if err == nil {
		s.cfg.Reached(PointRegistered)
		sequences, err = s.enqueue(ctx, chunkRefs(task.ID, draft))
	}
	if err == nil {
		err = s.markDispatched(ctx, task.ID, sequences, draft.IdempotencyKey)
	}
	if err != nil {
		return s.withdraw(ctx, task.ID, err)
	}
	return nil
}

// markDispatched marks a new task as queued, so that neither the sweep nor a repeated
// request queues it again. Without a key no request can repeat it, so the mark is
// written in the background.
func (s *submitter) markDispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64, key string) error {
	mark := func(ctx context.Context) error { return s.store.Dispatched(ctx, id, sequences) }
	if key == "" && s.marks.later(ctx, id, mark) {
		return nil
	}
	if err := mark(ctx); err != nil {
		return fmt.Errorf("%w: mark it as queued: %w", errNotQueued, err)
	}
	return nil
}

// register registers the specs of a task as requested at the time asked, the time of its
// number, which is unique and orders tasks although the store's clock may step back. A task that
// is rejected later leaves its registrations, because its specs are valid.
func (s *submitter) register(ctx context.Context, ds []catalog.Definition, asked time.Time) error {
	if len(ds) == 0 {
		return nil
	}
	for i := range ds {
		ds[i].Asked = asked
	}
	if _, err := s.store.Register(ctx, ds, true); err != nil {
		return fmt.Errorf("%w: %w", errNotRegistered, err)
	}
	return nil
}

func (s *submitter) enqueue(ctx context.Context, refs []bus.ChunkRef) ([]uint64, error) {
	sequences, err := s.queue.PublishChunks(ctx, refs, firstRound)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotQueued, err)
	}
	s.cfg.Reached(PointPublished)
	return sequences, nil
}

// withdraw rejects a task whose acceptance failed, and returns cause. It returns nil if
// the task can no longer be rejected, because an agent has begun it, or a repeated
// request or the sweep has queued it. Such a task is accepted, and the sweep completes
// it.
func (s *submitter) withdraw(ctx context.Context, id procfleet.TaskID, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeouts.Accept)
	defer cancel()
	rejected, err := s.store.Reject(ctx, id, "the task could not be stored and queued in time")
	switch {
	case err != nil:
		return &OutcomeUnknownError{Task: id, Err: errors.Join(cause, fmt.Errorf("reject it: %w", err))}
	case rejected:
		return cause
	}
	return nil
}

// again completes the acceptance of a task that an earlier request created: it audits,
// registers and queues the task if the first dispatcher did not. The first dispatcher
// may still be running or may have replied, so again rejects nothing, and does not
// replace newer registrations.
func (s *submitter) again(ctx context.Context, task procfleet.Task, draft drafted) error {
	if task.Dispatched || task.State != procfleet.TaskAccepted {
		return nil
	}
	if err := s.audit(ctx, &task, draft.Chunks); err != nil {
		return &OutcomeUnknownError{Task: task.ID, Err: err}
	}
	if err := s.register(ctx, draft.definitions, task.Number.Time()); err != nil {
		return &OutcomeUnknownError{Task: task.ID, Err: err}
	}
	refs, err := s.storedRefs(ctx, &task)
	if err != nil {
		return &OutcomeUnknownError{Task: task.ID, Err: err}
	}
	sequences, err := s.enqueue(ctx, refs)
	if err == nil {
		err = s.store.Dispatched(ctx, task.ID, sequences)
	}
	switch {
	case errors.Is(err, taskstore.ErrRejected):
		return errWithdrawn
	case err != nil:
		return &OutcomeUnknownError{Task: task.ID, Err: err}
	}
	return nil
}

// storedRefs returns the [chunkRefs] of a stored task.
func (s *submitter) storedRefs(ctx context.Context, task *procfleet.Task) ([]bus.ChunkRef, error) {
	if task.Rollout != nil {
		return advance(task.ID), nil
	}
	refs := make([]bus.ChunkRef, task.Chunks)
	for i := range refs {
		items, err := s.store.Chunk(ctx, task.ID, i)
		if err != nil {
			return nil, fmt.Errorf("read chunk %d: %w", i, err)
		}
		refs[i] = bus.ChunkRef{Task: task.ID, Chunk: i, Lane: task.Lane}
		if len(items) > 0 {
			refs[i].Cloud = items[0].Item.Target.Host.Cloud
		}
	}
	return refs, nil
}

// marks writes the dispatched marks of accepted tasks in the background. If a write
// fails or the dispatcher crashes, the sweep writes the mark.
type marks struct {
	running errgroup.Group // limited to marksAtOnce
	timeout time.Duration
	log     logrus.FieldLogger
}

// marksAtOnce is the maximum number of concurrent background writes.
const marksAtOnce = 256

// later writes a mark in the background. It returns false, and writes nothing, if
// marksAtOnce writes are in progress.
func (m *marks) later(ctx context.Context, id procfleet.TaskID, mark func(context.Context) error) bool {
	return m.running.TryGo(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.timeout)
		defer cancel()
		if err := mark(ctx); err != nil {
			m.log.WithError(err).WithField("task", id).Warn("dispatch not recorded, left to the sweep")
		}
		return nil
	})
}

func (m *marks) wait() { _ = m.running.Wait() } // writes return no error
