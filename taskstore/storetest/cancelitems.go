package storetest

import (
	"context"
	"errors"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func cancelItems(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID, mode procfleet.CancelMode, items ...taskstore.ChunkItems) procfleet.Task {
	t.Helper()
	task, err := s.CancelItems(ctx, id, items, mode, "wrong\nversion", taskstore.AnySeq)
	must(t, err, "cancel items")
	return task
}

func itemCancels(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID, chunk int) taskstore.CanceledItems {
	t.Helper()
	c, err := s.ItemCancels(ctx, id, chunk)
	must(t, err, "item cancels")
	return c
}

func cancelItemsWithholds(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	first := begin(ctx, t, s, task.ID, 0)
	record(ctx, t, s, task.ID, succeeded(7)...)
	canceled := cancelItems(ctx, t, s, task.ID, procfleet.CancelDrain,
		taskstore.ChunkItems{Chunk: 0, Items: []int{3, 7}}, taskstore.ChunkItems{Chunk: 1, Items: []int{0}})
	equal(t, "task", look(ctx, t, s, task.ID), canceled)
	equal(t, "seq", canceled.Seq, 1)
	equal(t, "chunks with cancels", canceled.ItemCancels, 2)
	equal(t, "cancel of the task", canceled.Cancel, procfleet.Cancel{})
	equal(t, "pending items", canceled.Counts[procfleet.StatePending], 299)
	again := begin(ctx, t, s, task.ID, 0)
	equal(t, "gate", again.Gate, taskstore.GateOpen)
	equal(t, "open items", len(again.Open), len(first.Open)-2)
	if begin(ctx, t, s, task.ID, 1).Open[0] != 1 {
		t.Errorf("a canceled item of a chunk that was never begun is open")
	}
}

func itemCancelsAreCarriedOut(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(3))
	equal(t, "cancels", len(itemCancels(ctx, t, s, task.ID, 0).Cancels), 0)
	pause(ctx, t, s, task.ID, "")
	cancelItems(ctx, t, s, task.ID, procfleet.CancelDrain, taskstore.ChunkItems{Items: []int{2}})
	never := itemCancels(ctx, t, s, task.ID, 0)
	equal(t, "first begun", never.FirstBegun.IsZero(), true)
	resume(ctx, t, s, task.ID)
	begun := begin(ctx, t, s, task.ID, 0)
	must(t, s.Delivered(ctx, task.ID, 0, []int{0}, true), "delivered")
	later := cancelItems(ctx, t, s, task.ID, procfleet.CancelInterrupt, taskstore.ChunkItems{Items: []int{0}})
	equal(t, "chunks with cancels", later.ItemCancels, 1)
	c := itemCancels(ctx, t, s, task.ID, 0)
	equal(t, "first begun", c.FirstBegun, begun.FirstBegun)
	equal(t, "open items", c.Open, []int{0, 1, 2})
	equal(t, "items", len(c.Chunk.Items), 3)
	equal(t, "task", c.Task, later)
	equal(t, "cancels", len(c.Cancels), 2)
	for n, want := range []taskstore.ItemCancel{
		{Seq: 2, Items: []int{2}, Mode: procfleet.CancelDrain, Reason: "wrong\nversion"},
		{Seq: 4, Items: []int{0}, Mode: procfleet.CancelInterrupt, Reason: "wrong\nversion"},
	} {
		if c.Cancels[n].Since.Before(task.CreatedAt) {
			t.Errorf("canceled at %v", c.Cancels[n].Since)
		}
		want.Since = c.Cancels[n].Since
		equal(t, "cancel", c.Cancels[n], want)
	}
	for _, step := range []struct{ seq, left, chunks int }{{1, 2, 1}, {2, 1, 1}, {4, 0, 0}, {4, 0, 0}} {
		must(t, s.ItemsCanceled(ctx, task.ID, 0, step.seq), "items canceled")
		equal(t, "cancels", len(itemCancels(ctx, t, s, task.ID, 0).Cancels), step.left)
		equal(t, "chunks with cancels", look(ctx, t, s, task.ID).ItemCancels, step.chunks)
	}
}

func cancelItemsRepeats(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(3))
	items := []taskstore.ChunkItems{{Items: []int{1}}}
	if _, err := s.CancelItems(ctx, task.ID, items, procfleet.CancelDrain, "", 1); !errors.Is(err, taskstore.ErrSeq) {
		t.Errorf("cancel with another seq: %v", err)
	}
	equal(t, "cancels", look(ctx, t, s, task.ID).ItemCancels, 0)
	canceled := cancelItems(ctx, t, s, task.ID, procfleet.CancelDrain, items...)
	equal(t, "canceled twice", cancelItems(ctx, t, s, task.ID, procfleet.CancelDrain, items...), canceled)
	repeated, err := s.CancelItems(ctx, task.ID, items, procfleet.CancelDrain, "wrong\nversion", 0)
	must(t, err, "a repeat with the seq before")
	equal(t, "task", repeated, canceled)
	record(ctx, t, s, task.ID, succeeded(0)...)
	equal(t, "seq", cancelItems(ctx, t, s, task.ID, procfleet.CancelDrain, taskstore.ChunkItems{Items: []int{0}}).Seq, 1)
	whole := cancel(ctx, t, s, task.ID, procfleet.CancelDrain)
	equal(t, "chunks with cancels", whole.ItemCancels, 0)
	equal(t, "canceled items", whole.Counts[procfleet.StateCancelled], 2)
	if _, err := s.CancelItems(ctx, task.ID, items, procfleet.CancelDrain, "", taskstore.AnySeq); !errors.Is(err, taskstore.ErrDone) {
		t.Errorf("cancel of items of a finished task: %v", err)
	}
	equal(t, "cancels of an unknown task", itemCancels(ctx, t, s, "GSETASK:20200101000000:1", 0), taskstore.CanceledItems{})
}

func itemCancelsSurvive(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	cancelItems(ctx, t, s, task.ID, procfleet.CancelInterrupt, taskstore.ChunkItems{Items: []int{1}})
	before := itemCancels(ctx, t, s, task.ID, 0)
	after := s.Reopen()
	equal(t, "cancels", itemCancels(ctx, t, after, task.ID, 0), before)
	equal(t, "open items", begin(ctx, t, after, task.ID, 0).Open, []int{0})
}
