package boltstore

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Due returns the due visits of a shard. It also returns visits that are further in the
// future than allowed, because they were scheduled before the clock stepped back.
func (s *Store) Due(ctx context.Context, shard, limit int) ([]taskstore.Visit, error) {
	return view(ctx, s, func(t *tx) ([]taskstore.Visit, error) {
		var visits []taskstore.Visit
		c := t.Bucket(bucketVisits).Cursor()
		collect := func(from, until time.Time) {
			for key, _ := c.Seek(visitSeek(shard, from)); key != nil && int(key[0]) == shard && len(visits) < limit; key, _ = c.Next() {
				at := procfleet.Number(binary.BigEndian.Uint64(key[1:])).Time()
				if !until.IsZero() && at.After(until) {
					return
				}
				visits = append(visits, taskstore.Visit{Task: procfleet.Number(binary.BigEndian.Uint64(key[9:])).TaskID(), At: at})
			}
		}
		collect(time.Time{}, t.Now)
		collect(t.Now.Add(taskstore.MaxVisit+time.Microsecond), time.Time{})
		return visits, nil
	})
}

// visitSeek returns the first possible key of a shard's visits at or after a moment.
func visitSeek(shard int, from time.Time) []byte {
	key := []byte{byte(shard)}
	if !from.IsZero() {
		key = binary.BigEndian.AppendUint64(key, uint64(from.UnixMicro()))
	}
	return key
}

// TasksByID returns the tasks with these ids, in order.
func (s *Store) TasksByID(ctx context.Context, ids []procfleet.TaskID) ([]procfleet.Task, error) {
	return view(ctx, s, func(t *tx) ([]procfleet.Task, error) {
		tasks := make([]procfleet.Task, len(ids))
		for i, id := range ids {
			r, err := t.task(id)
			switch {
			case errors.Is(err, taskstore.ErrNotFound):
			case err != nil:
				return nil, err
			default:
				tasks[i] = taskOf(r)
			}
		}
		return tasks, nil
	})
}

// visit moves a task's visit in the sweep index, or removes it if at is zero. The
// caller must write the record.
func (t *tx) visit(r *taskRecord, at time.Time) error {
	index := t.Bucket(bucketVisits)
	if !r.Visit.IsZero() {
		if err := index.Delete(visitKey(r.Visit, r.Number)); err != nil {
			return err
		}
	}
	if r.Visit = at; at.IsZero() {
		return nil
	}
	return index.Put(visitKey(at, r.Number), nil)
}

// Revisit schedules the next visits of tasks.
func (s *Store) Revisit(ctx context.Context, next ...taskstore.NextVisit) error {
	next = slices.Clone(next)
	return change(ctx, s, func(t *tx) error {
		for _, v := range next {
			if err := t.reschedule(v.Task, time.Time{}, t.Now.Add(min(v.After, taskstore.MaxVisit))); err != nil {
				return err
			}
		}
		return nil
	})
}

// Settle removes visits from the sweep index.
func (s *Store) Settle(ctx context.Context, visits ...taskstore.Visit) error {
	visits = slices.Clone(visits)
	return change(ctx, s, func(t *tx) error {
		for _, v := range visits {
			if err := t.reschedule(v.Task, v.At, time.Time{}); err != nil {
				return err
			}
		}
		return nil
	})
}

// reschedule changes the visit of a task if its moment is still from; a zero from
// matches any moment. A task and its visit are always written in one transaction, so a
// task that was removed has no visit, and no task is written after its visit was
// settled.
func (t *tx) reschedule(id procfleet.TaskID, from, to time.Time) error {
	n, err := id.Number()
	if err != nil {
		return nil //nolint:nilerr // an invalid id belongs to no task
	}
	r, err := t.taskNumbered(n)
	if err != nil || r == nil {
		return err
	}
	if !from.IsZero() && from.UnixMicro() != r.Visit.UnixMicro() {
		return nil
	}
	if err := t.visit(r, to); err != nil {
		return err
	}
	return t.putTask(r)
}

// Undone returns the chunks of a task that are not done.
func (s *Store) Undone(ctx context.Context, id procfleet.TaskID) ([]taskstore.UndoneChunk, error) {
	return view(ctx, s, func(t *tx) ([]taskstore.UndoneChunk, error) {
		r, err := t.task(id)
		if err != nil {
			return nil, err
		}
		all, err := t.legs(r).all()
		if err != nil {
			return nil, err
		}
		var chunks []taskstore.UndoneChunk
		for c, l := range all {
			if r.undone(l) {
				chunks = append(chunks, taskstore.UndoneChunk{Chunk: c, Sequence: l.Sequence, Begun: l.Begun})
			}
		}
		return chunks, nil
	})
}

// Republished records the new stream position of a chunk.
func (s *Store) Republished(ctx context.Context, id procfleet.TaskID, chunk int, sequence uint64) error {
	return change(ctx, s, func(t *tx) error {
		r, err := t.task(id)
		if err != nil {
			return err
		}
		ls := t.legs(r)
		l, err := ls.leg(chunk)
		if err != nil {
			return err
		}
		l.Sequence = sequence
		ls.dirty[chunk] = true
		return ls.save()
	})
}

// Published sets EventPublished of a finished task.
func (s *Store) Published(ctx context.Context, id procfleet.TaskID) error {
	return change(ctx, s, func(t *tx) error {
		r, err := t.task(id)
		if err != nil || r.State != procfleet.TaskFinished || r.EventPublished {
			return err
		}
		r.EventPublished = true
		return t.putTask(r)
	})
}

// Notified clears NotifyPending of tasks and removes finished tasks from the sweep
// index.
func (s *Store) Notified(ctx context.Context, ids ...procfleet.TaskID) error {
	return change(ctx, s, func(t *tx) error {
		for _, id := range ids {
			if err := t.notified(id); err != nil && !errors.Is(err, taskstore.ErrNotFound) {
				return err
			}
		}
		return nil
	})
}

func (t *tx) notified(id procfleet.TaskID) error {
	r, err := t.task(id)
	if err != nil || r.State != procfleet.TaskFinished || !r.NotifyPending && r.Visit.IsZero() {
		return err
	}
	r.NotifyPending = false
	if err := t.visit(r, time.Time{}); err != nil {
		return err
	}
	return t.putTask(r)
}
