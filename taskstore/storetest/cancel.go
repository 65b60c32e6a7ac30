package storetest

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func cancel(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID, mode procfleet.CancelMode) procfleet.Task {
	t.Helper()
	task, err := s.Cancel(ctx, id, mode, "wrong version", taskstore.AnySeq)
	must(t, err, "cancel")
	return task
}

func cancelEndsPending(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	begin(ctx, t, s, task.ID, 1)
	pause(ctx, t, s, task.ID, "")
	canceled := cancel(ctx, t, s, task.ID, procfleet.CancelDrain)
	equal(t, "canceled task", look(ctx, t, s, task.ID), canceled)
	equal(t, "seq", canceled.Seq, 2)
	equal(t, "hold", canceled.Hold, procfleet.Hold{})
	equal(t, "state", canceled.State, procfleet.TaskRunning)
	equal(t, "canceled items", canceled.Counts[procfleet.StateCancelled], procfleet.ChunkItems)
	equal(t, "pending items", canceled.Counts[procfleet.StatePending], 300-procfleet.ChunkItems)
	if c := canceled.Cancel; c.Mode != procfleet.CancelDrain || c.Reason != "wrong version" || c.Since.Before(task.CreatedAt) {
		t.Errorf("cancel is %+v", c)
	}
	ended, err := s.Chunk(ctx, task.ID, 0)
	must(t, err, "chunk")
	r := ended[7].Result
	if ended[7].State != procfleet.StateCancelled || r.Item != 7 || r.Code != procfleet.CodeFailed || r.Reason != procfleet.ReasonCancelled ||
		!strings.Contains(r.Message, "wrong version") || r.FinishedAt.IsZero() {
		t.Errorf("item is %s, result %+v", ended[7].State, r)
	}
	page, _, err := s.Results(ctx, task.ID, taskstore.ResultQuery{State: procfleet.StateCancelled, Limit: 1000})
	must(t, err, "results")
	equal(t, "listed items", len(page), procfleet.ChunkItems)
	equal(t, "gate of an ended chunk", begin(ctx, t, s, task.ID, 0).Gate, taskstore.GateFinished)
	equal(t, "applied", record(ctx, t, s, task.ID, succeeded(7)...).Applied, 0)
}

func cancelReopens(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(3))
	first := begin(ctx, t, s, task.ID, 0).FirstBegun
	must(t, s.Delivered(ctx, task.ID, 0, []int{0, 1, 2}, true), "delivered")
	record(ctx, t, s, task.ID, succeeded(2)...)
	for _, mode := range []procfleet.CancelMode{procfleet.CancelDrain, procfleet.CancelInterrupt} {
		cancel(ctx, t, s, task.ID, mode)
		equal(t, "undone chunks", len(undone(ctx, t, s, task.ID)), 1)
		b := begin(ctx, t, s, task.ID, 0)
		equal(t, "gate", b.Gate, taskstore.GateCanceled)
		equal(t, "open items", b.Open, []int{0, 1})
		equal(t, "items", len(b.Chunk.Items), 3)
		equal(t, "mode", b.Task.Cancel.Mode, mode)
		equal(t, "first begun", b.FirstBegun, first)
		must(t, s.Delivered(ctx, task.ID, 0, nil, true), "done")
		equal(t, "gate of a chunk that is done", begin(ctx, t, s, task.ID, 0).Gate, taskstore.GateFinished)
	}
	equal(t, "completed", record(ctx, t, s, task.ID, succeeded(0, 1)...).Completed, true)
}

func cancelFinishes(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	canceled := cancel(ctx, t, s, task.ID, procfleet.CancelDrain)
	equal(t, "state", canceled.State, procfleet.TaskFinished)
	equal(t, "notification pending", canceled.NotifyPending, true)
	equal(t, "finished", canceled.FinishedAt.IsZero(), false)
	equal(t, "counters", canceled.Counts[procfleet.StateCancelled], 300)
	if _, err := s.Cancel(ctx, task.ID, procfleet.CancelDrain, "", taskstore.AnySeq); !errors.Is(err, taskstore.ErrDone) {
		t.Errorf("cancel of a finished task: %v", err)
	}
	equal(t, "rejected", reject(ctx, t, s, task.ID, "full"), false)
}

func cancelRepeats(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	begin(ctx, t, s, task.ID, 0)
	if _, err := s.Cancel(ctx, task.ID, procfleet.CancelDrain, "", 1); !errors.Is(err, taskstore.ErrSeq) {
		t.Errorf("cancel with another seq: %v", err)
	}
	equal(t, "task", look(ctx, t, s, task.ID).Cancel, procfleet.Cancel{})
	drained := cancel(ctx, t, s, task.ID, procfleet.CancelDrain)
	equal(t, "drained twice", cancel(ctx, t, s, task.ID, procfleet.CancelDrain), drained)
	interrupted := cancel(ctx, t, s, task.ID, procfleet.CancelInterrupt)
	equal(t, "seq", interrupted.Seq, 2)
	equal(t, "mode", interrupted.Cancel.Mode, procfleet.CancelInterrupt)
	equal(t, "since", interrupted.Cancel.Since, drained.Cancel.Since)
	equal(t, "drained after an interrupt", cancel(ctx, t, s, task.ID, procfleet.CancelDrain), interrupted)
}

func cancelAgainstBegin(ctx context.Context, t T, s Subject) {
	for range s.rounds(20, 100) {
		task := create(ctx, t, s, Draft(1))
		var canceled, begun, late atomic.Bool
		together(3, func(i int) {
			if i == 0 {
				cancel(ctx, t, s, task.ID, procfleet.CancelDrain)
				canceled.Store(true)
				return
			}
			for range 5 {
				after := canceled.Load()
				b, err := s.Begin(ctx, task.ID, 0, 0)
				if err != nil {
					t.Errorf("begin: %v", err)
				}
				if b.Gate == taskstore.GateOpen {
					begun.Store(true)
					late.Store(late.Load() || after)
				}
			}
		})
		want := taskstore.GateFinished
		if begun.Load() {
			want = taskstore.GateCanceled
		}
		if got := begin(ctx, t, s, task.ID, 0).Gate; late.Load() || got != want {
			t.Fatalf("begun before %t, after cancel had returned %t, gate is %s", begun.Load(), late.Load(), got)
		}
	}
}

func retriesAreLinked(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	record(ctx, t, s, task.ID, succeeded(0, 1)...)
	var retries []procfleet.TaskID
	for range 2 {
		d := Draft(1)
		d.RetryOf = task.ID
		retry := create(ctx, t, s, d)
		equal(t, "retry of", look(ctx, t, s, retry.ID).RetryOf, task.ID)
		retries = append(retries, retry.ID)
		for range 2 { // a repeat changes nothing
			linked, err := s.Retried(ctx, task.ID, retry.ID)
			must(t, err, "retried")
			equal(t, "retried by", linked.RetriedBy, retries)
			equal(t, "seq", linked.Seq, len(retries))
			equal(t, "task", look(ctx, t, s, task.ID), linked)
		}
	}
	if _, err := s.Retried(ctx, "GSETASK:20200101000000:1", retries[0]); !errors.Is(err, taskstore.ErrNotFound) {
		t.Errorf("retry of an unknown task: %v", err)
	}
}
