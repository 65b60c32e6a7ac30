package boltstore

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Due returns the tasks of a shard whose visit is due.
func (s *Store) Due(ctx context.Context, shard, limit int) ([]procfleet.TaskID, error) {
	return view(ctx, s, func(t *tx) ([]procfleet.TaskID, error) {
		var ids []procfleet.TaskID
		c := t.Bucket(bucketVisits).Cursor()
		for key, _ := c.Seek([]byte{byte(shard)}); key != nil && int(key[0]) == shard && len(ids) < limit; key, _ = c.Next() {
			if int64(binary.BigEndian.Uint64(key[1:])) > t.now.UnixMicro() {
				break
			}
			ids = append(ids, procfleet.Number(binary.BigEndian.Uint64(key[9:])).TaskID())
		}
		return ids, nil
	})
}

// visit moves a task in the sweep index, or out of it with the zero time. The
// record is the caller's to put.
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

// Revisit sets a task's next visit.
func (s *Store) Revisit(ctx context.Context, id procfleet.TaskID, after time.Duration) error {
	return change(ctx, s, func(t *tx) error { return t.reschedule(id, t.now.Add(after)) })
}

// Settle takes a task out of the sweep index.
func (s *Store) Settle(ctx context.Context, id procfleet.TaskID) error {
	return change(ctx, s, func(t *tx) error { return t.reschedule(id, time.Time{}) })
}

// reschedule sets the visit of a task. A gone task has none, which is no
// error: whoever visits it is to settle it.
func (t *tx) reschedule(id procfleet.TaskID, at time.Time) error {
	n, err := id.Number()
	if err != nil {
		return nil //nolint:nilerr // an id that is none is of no task
	}
	r, err := t.taskNumbered(n)
	if err != nil || r == nil {
		return err
	}
	if err := t.visit(r, at); err != nil {
		return err
	}
	return t.putTask(r)
}

// Undone returns the chunks of a task that are not done.
func (s *Store) Undone(ctx context.Context, id procfleet.TaskID) ([]taskstore.ChunkDuty, error) {
	return view(ctx, s, func(t *tx) ([]taskstore.ChunkDuty, error) {
		r, err := t.task(id)
		if err != nil {
			return nil, err
		}
		all, err := t.legs(r).all()
		if err != nil {
			return nil, err
		}
		var duties []taskstore.ChunkDuty
		for c, l := range all {
			if !l.Done {
				duties = append(duties, taskstore.ChunkDuty{Chunk: c, Sequence: l.Sequence, Begun: l.Begun})
			}
		}
		return duties, nil
	})
}

// Republished notes a chunk's new position in the stream.
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

// Notified clears NotifyPending and settles the task if it is finished.
func (s *Store) Notified(ctx context.Context, id procfleet.TaskID) error {
	return change(ctx, s, func(t *tx) error {
		r, err := t.task(id)
		if err != nil || r.State != procfleet.TaskFinished || !r.NotifyPending && r.Visit.IsZero() {
			return err
		}
		r.NotifyPending = false
		if err := t.visit(r, time.Time{}); err != nil {
			return err
		}
		return t.putTask(r)
	})
}
