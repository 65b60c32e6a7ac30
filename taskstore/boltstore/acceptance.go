package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// Create stores a task together with its idempotency key in one transaction, so no key
// points to a task that was never written.
func (s *Store) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	packed, err := packChunks(d.Chunks)
	if err != nil {
		return procfleet.Task{}, false, err
	}
	if d.Rollout != nil {
		for i := range packed {
			packed[i].leg.Units, packed[i].leg.Zone = pack.Units(d.Chunks[i].Items), d.Chunks[i].Zone
		}
	}
	d.Chunks, d.Actions = nil, slices.Clone(d.Actions)
	type made struct {
		task    procfleet.Task
		created bool
	}
	// uncertain is the task that may be on disk although update returns an error. If
	// ctx ends, Create may read it before the change sets it. That is safe, because the
	// change checks ctx after setting it and then writes no task.
	var uncertain atomic.Pointer[procfleet.Task]
	m, err := update(ctx, s, func(t *tx) (made, error) {
		uncertain.Store(nil) // the transaction that set it was rolled back
		found, err := t.keyed(d)
		if err != nil || found != nil {
			return made{task: taskOf(found)}, err
		}
		if !d.NotAfter.IsZero() && t.Now.After(d.NotAfter) {
			return made{}, taskstore.ErrExpired
		}
		r, err := t.newTask(d, packed)
		if err != nil {
			return made{}, err
		}
		task := taskOf(r)
		uncertain.Store(&task)
		if err := ctx.Err(); err != nil {
			uncertain.Store(nil)
			return made{}, fmt.Errorf("%w: create a task: %v", taskstore.ErrUnavailable, err) //nolint:errorlint // %v hides err from clean: the number is already written
		}
		return made{task: taskOf(r), created: true}, t.putNew(r, d.BodyHash, packed)
	})
	if task := uncertain.Load(); err != nil && task != nil && !errors.Is(err, syscall.ENOSPC) {
		return *task, false, err
	}
	return m.task, m.created, err
}

// taskOf returns a copy of the task in a record; the zero Task for nil.
func taskOf(r *taskRecord) procfleet.Task {
	if r == nil {
		return procfleet.Task{}
	}
	task := r.Task
	task.Counts = maps.Clone(task.Counts)
	task.Actions = slices.Clone(task.Actions)
	task.RetriedBy = slices.Clone(task.RetriedBy)
	if task.Rollout != nil {
		rollout := *task.Rollout
		task.Rollout = &rollout
	}
	return task
}

// packedChunk is a packed chunk with its initial leg.
type packedChunk struct {
	raw []byte
	leg leg
}

// packChunks packs chunks. Call it outside the transaction, which delays all other
// writers.
func packChunks(chunks []procfleet.Chunk) ([]packedChunk, error) {
	packed := make([]packedChunk, len(chunks))
	first := 0
	for i := range chunks {
		c := &chunks[i]
		if c.First != first {
			return nil, fmt.Errorf("boltstore: chunk %d begins with item %d, want %d", i, c.First, first)
		}
		raw, err := pack.Chunk(c)
		if err != nil {
			return nil, err
		}
		marks := bytes.Repeat([]byte{byte(pack.Pending)}, len(c.Items))
		packed[i] = packedChunk{raw: raw, leg: leg{First: first, Marks: marks}}
		first += len(c.Items)
	}
	return packed, nil
}

// keyed returns the task to which the draft's idempotency key points; nil if the key is
// free.
func (t *tx) keyed(d taskstore.Draft) (*taskRecord, error) {
	if d.IdempotencyKey == "" {
		return nil, nil
	}
	var k keyRecord
	found, err := t.Get(bucketKeys, boltdb.Digest(d.Application, d.IdempotencyKey), &k)
	if err != nil || !found {
		return nil, err
	}
	r, err := t.task(k.Task.TaskID())
	switch {
	case errors.Is(err, taskstore.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case r.State == procfleet.TaskRejected:
		return nil, nil
	case k.BodyHash != d.BodyHash:
		return nil, taskstore.ErrConflict
	}
	return r, nil
}

// newTask allots a number for the draft and returns the record of its task.
func (t *tx) newTask(d taskstore.Draft, packed []packedChunk) (*taskRecord, error) {
	n, err := t.nextNumber()
	if err != nil {
		return nil, err
	}
	items := 0
	for i := range packed {
		items += len(packed[i].leg.Marks)
	}
	deadline := t.Now.Add(d.Timeout)
	r := &taskRecord{Task: procfleet.Task{
		ID: n.TaskID(), Number: n, State: procfleet.TaskAccepted, Lane: d.Lane,
		Items: items, Chunks: len(packed), Counts: procfleet.Counts{},
		CreatedAt: t.Now, Deadline: deadline, ExpiresAt: deadline.Add(d.Retention),
		Actions: d.Actions, Dialect: d.Dialect, Application: d.Application, Business: d.Business, Callback: d.Callback, Origin: d.Origin, RetryOf: d.RetryOf, UndoOf: d.UndoOf, Trace: d.Trace,
	}}
	for _, s := range procfleet.States() {
		r.Counts[s] = 0
	}
	r.Counts[procfleet.StatePending] = items
	if d.Rollout != nil {
		r.Rollout = pack.NewRollout(*d.Rollout, t.Now)
	}
	if d.IdempotencyKey != "" {
		r.Key = boltdb.Digest(d.Application, d.IdempotencyKey)
	}
	return r, nil
}

// nextNumber returns the time in microseconds, or the last number plus one if the clock
// has not passed that.
func (t *tx) nextNumber() (procfleet.Number, error) {
	meta := t.Bucket(boltdb.BucketMeta)
	n := uint64(t.Now.UnixMicro())
	if last := meta.Get(keyNumber); last != nil {
		n = max(n, binary.BigEndian.Uint64(last)+1)
	}
	return procfleet.Number(n), meta.Put(keyNumber, boltdb.Number8(n))
}

// putNew writes all records of a new task.
func (t *tx) putNew(r *taskRecord, bodyHash string, packed []packedChunk) error {
	for c, p := range packed {
		if err := t.Bucket(bucketChunks).Put(partKey(r.Number, c), p.raw); err != nil {
			return err
		}
		if err := t.Put(bucketLegs, partKey(r.Number, c), &p.leg); err != nil {
			return err
		}
	}
	if r.Key != nil {
		if err := t.Put(bucketKeys, r.Key, keyRecord{Task: r.Number, BodyHash: bodyHash}); err != nil {
			return err
		}
	}
	if err := t.Bucket(bucketExpiry).Put(momentKey(r.ExpiresAt, r.Number), nil); err != nil {
		return err
	}
	if err := t.visit(r, r.CreatedAt.Add(taskstore.FirstVisitOf(r.Deadline.Sub(r.CreatedAt)))); err != nil {
		return err
	}
	return t.putTask(r)
}

// Dispatched marks a task as dispatched and records the stream position of each chunk.
func (s *Store) Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error {
	sequences = slices.Clone(sequences)
	return change(ctx, s, func(t *tx) error {
		r, err := t.task(id)
		if err != nil {
			return err
		}
		if r.State == procfleet.TaskRejected {
			return taskstore.ErrRejected
		}
		ls := t.legs(r)
		for c, sequence := range sequences[:min(len(sequences), r.Chunks)] {
			l, err := ls.leg(c)
			if err != nil {
				return err
			}
			l.Sequence = sequence
			ls.dirty[c] = true
		}
		r.Dispatched = true
		return ls.save()
	})
}

// Reject rejects a task that was neither begun nor dispatched. It reports whether the
// task is rejected.
func (s *Store) Reject(ctx context.Context, id procfleet.TaskID, reason string) (bool, error) {
	return update(ctx, s, func(t *tx) (bool, error) {
		r, err := t.task(id)
		if err != nil || r.State != procfleet.TaskAccepted || r.Dispatched {
			return err == nil && r.State == procfleet.TaskRejected, err
		}
		// Leave the marks unchanged: the state of the task makes every item rejected.
		r.State, r.RejectReason, r.FinishedAt, r.Hold = procfleet.TaskRejected, reason, t.Now, procfleet.Hold{}
		r.Counts[procfleet.StateRejected] = r.Items
		r.Counts[procfleet.StatePending], r.Counts[procfleet.StateDelivered] = 0, 0
		return true, t.putTask(r)
	})
}
