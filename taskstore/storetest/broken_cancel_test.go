package storetest_test

import (
	"context"
	"sync"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// forgetsReasons drops the reason of a cancel.
type forgetsReasons struct{ taskstore.Store }

func (s forgetsReasons) Cancel(ctx context.Context, id procfleet.TaskID, mode procfleet.CancelMode, _ string, seq int) (procfleet.Task, error) {
	return s.Store.Cancel(ctx, id, mode, "", seq)
}

// keepsDone leaves the chunks of a canceled task done.
type keepsDone struct {
	taskstore.Store
	done *sync.Map
}

func (s keepsDone) Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error {
	if done {
		s.done.Store(id, true)
	}
	return s.Store.Delivered(ctx, id, chunk, items, done)
}

func (s keepsDone) Undone(ctx context.Context, id procfleet.TaskID) ([]taskstore.UndoneChunk, error) {
	if _, done := s.done.Load(id); done {
		return nil, nil
	}
	return s.Store.Undone(ctx, id)
}

// cancelsSilently does not notify the end of a task that a cancel finished.
type cancelsSilently struct{ taskstore.Store }

func (s cancelsSilently) Cancel(ctx context.Context, id procfleet.TaskID, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	t, err := s.Store.Cancel(ctx, id, mode, reason, seq)
	t.NotifyPending = false
	return t, err
}

// modeBlind changes the mode with every cancel.
type modeBlind struct{ taskstore.Store }

func (s modeBlind) Cancel(ctx context.Context, id procfleet.TaskID, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	t, err := s.Store.Cancel(ctx, id, mode, reason, seq)
	t.Cancel.Mode = mode
	return t, err
}

// countsRetries adds a retry once per call.
type countsRetries struct{ taskstore.Store }

func (s countsRetries) Retried(ctx context.Context, id, retry procfleet.TaskID) (procfleet.Task, error) {
	before, err := s.Task(ctx, id)
	if err != nil {
		return before, err
	}
	t, err := s.Store.Retried(ctx, id, retry)
	t.Seq = before.Seq + 1
	return t, err
}

// deliversCanceled returns canceled items as open.
type deliversCanceled struct{ taskstore.Store }

func (s deliversCanceled) Begin(ctx context.Context, id procfleet.TaskID, chunk, upto int) (taskstore.Begun, error) {
	b, err := s.Store.Begin(ctx, id, chunk, upto)
	if c, _ := s.ItemCancels(ctx, id, chunk); len(c.Cancels) > 0 {
		b.Open = c.Open
	}
	return b, err
}

// keepsItemCancels ignores that cancels of items were carried out.
type keepsItemCancels struct{ taskstore.Store }

func (keepsItemCancels) ItemsCanceled(context.Context, procfleet.TaskID, int, int) error { return nil }

// countsItemCancels counts repeated cancels of items.
type countsItemCancels struct{ taskstore.Store }

func (s countsItemCancels) CancelItems(ctx context.Context, id procfleet.TaskID, items []taskstore.ChunkItems, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	before, err := s.Task(ctx, id)
	if err != nil {
		return before, err
	}
	t, err := s.Store.CancelItems(ctx, id, items, mode, reason, seq)
	if err == nil {
		t.Seq = before.Seq + 1
	}
	return t, err
}
