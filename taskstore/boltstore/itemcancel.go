package boltstore

import (
	"context"
	"errors"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// CancelItems stores cancels of items for workers.
func (s *Store) CancelItems(ctx context.Context, id procfleet.TaskID, items []taskstore.ChunkItems, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	var ls *legs
	var added []taskstore.ChunkItems
	stored := func(t *tx, r *taskRecord) (bool, error) {
		if r.Canceled() {
			return true, nil
		}
		ls, added = t.legs(r), nil
		for _, of := range items {
			l, err := ls.leg(of.Chunk)
			if err != nil {
				return false, err
			}
			of.Items = l.open(of.Items)
			same := func(c taskstore.ItemCancel) bool {
				return c.Mode == mode && c.Reason == reason && slices.Equal(c.Items, of.Items)
			}
			if len(of.Items) > 0 && !slices.ContainsFunc(l.Cancels, same) {
				added = append(added, of)
			}
		}
		return len(added) == 0, nil
	}
	return s.control(ctx, id, seq, stored, func(t *tx, r *taskRecord) error {
		for _, of := range added {
			l := ls.read[of.Chunk]
			if len(l.Cancels) == 0 {
				r.ItemCancels++
			}
			l.Cancels = append(l.Cancels, taskstore.ItemCancel{Seq: r.Seq + 1, Items: of.Items, Mode: mode, Reason: reason, Since: t.Now})
			ls.dirty[of.Chunk] = true
		}
		t.note(r, procfleet.Transition{Kind: procfleet.TransitionItemsCancelled, Mode: mode, Reason: reason})
		return ls.save()
	})
}

// open returns those of the items that have no final result.
func (l *leg) open(items []int) []int {
	return slices.DeleteFunc(slices.Clone(items), func(i int) bool {
		return i < 0 || i >= len(l.Marks) || !openMark(l.Marks[i])
	})
}

// ItemCancels returns the cancels of a chunk's items.
func (s *Store) ItemCancels(ctx context.Context, id procfleet.TaskID, chunk int) (taskstore.CanceledItems, error) {
	return view(ctx, s, func(t *tx) (taskstore.CanceledItems, error) {
		r, err := t.task(id)
		if errors.Is(err, taskstore.ErrNotFound) || err == nil && (r.State.Done() || r.Canceled()) {
			return taskstore.CanceledItems{}, nil
		}
		if err != nil {
			return taskstore.CanceledItems{}, err
		}
		l, err := t.legs(r).leg(chunk)
		if errors.Is(err, errNoChunk) || err == nil && len(l.Cancels) == 0 {
			return taskstore.CanceledItems{}, nil
		}
		if err != nil {
			return taskstore.CanceledItems{}, err
		}
		c := taskstore.CanceledItems{Cancels: l.Cancels, Task: taskOf(r), FirstBegun: l.Begun}
		c.Open, c.Unsent = pack.Canceled(l.Marks, l.Grants)
		if r.Rollout == nil {
			c.Unsent = nil
		}
		c.Chunk, err = pack.ReadChunk(string(t.Bucket(bucketChunks).Get(partKey(r.Number, chunk))))
		return c, err
	})
}

// ItemsCanceled removes cancels that were carried out.
func (s *Store) ItemsCanceled(ctx context.Context, id procfleet.TaskID, chunk, seq int) error {
	return change(ctx, s, func(t *tx) error {
		r, err := t.task(id)
		if err != nil {
			return err
		}
		ls := t.legs(r)
		l, err := ls.leg(chunk)
		if err != nil || len(l.Cancels) == 0 {
			return err
		}
		l.Cancels = slices.DeleteFunc(l.Cancels, func(c taskstore.ItemCancel) bool { return c.Seq <= seq })
		if len(l.Cancels) == 0 {
			r.ItemCancels--
		}
		ls.dirty[chunk] = true
		return ls.save()
	})
}
