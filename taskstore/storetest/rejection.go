package storetest

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func rejectionChecks() []Check {
	return []Check{
		{Name: "reject ends a task of which nothing was begun", Fn: rejectEnds},
		{Name: "a begun task cannot be rejected", Fn: begunNotRejected},
		{Name: "a finished task cannot be rejected", Fn: finishedNotRejected},
		{Name: "a dispatched task cannot be rejected, nor a rejected one dispatched", Fn: dispatchedOrRejected},
		{Name: "reject and first begin exclude each other", Fn: rejectOrBegin, Heavy: true},
	}
}

func reject(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID, reason string) bool {
	t.Helper()
	rejected, err := s.Reject(ctx, id, reason)
	must(t, err, "reject")
	return rejected
}

func rejectEnds(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	for _, reason := range []string{"the queue is full", "another reason"} {
		if !reject(ctx, t, s, task.ID, reason) {
			t.Errorf("reject answers false")
		}
	}
	if gate := begin(ctx, t, s, task.ID, 1); gate.Gate != taskstore.GateRejected || len(gate.Open) > 0 {
		t.Errorf("begin of a rejected task: %+v", gate)
	}
	must(t, s.Delivered(ctx, task.ID, 0, []int{0, 1}, true), "delivered")
	equal(t, "record", record(ctx, t, s, task.ID, succeeded(0, 1)...).Applied, 0)

	got := look(ctx, t, s, task.ID)
	if got.State != procfleet.TaskRejected || got.NotifyPending || got.RejectReason != "the queue is full" || got.FinishedAt.IsZero() {
		t.Errorf("rejected task is %+v", got)
	}
	equal(t, "counters", got.Counts, counts(300, procfleet.StateRejected))
	for _, it := range items(ctx, t, s, got) {
		if it.State != procfleet.StateRejected || it.Result.Reason != procfleet.ReasonRejected ||
			it.Result.Code != procfleet.CodeFailed || it.Result.Message != "the queue is full" || it.Result.Item != it.Index {
			t.Fatalf("item of a rejected task: %s, %+v", it.State, it.Result)
		}
	}
	audit(ctx, t, s, task.ID)
}

func begunNotRejected(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	equal(t, "gate", begin(ctx, t, s, task.ID, 1).Gate, taskstore.GateOpen)
	before := look(ctx, t, s, task.ID)
	if reject(ctx, t, s, task.ID, "too late") {
		t.Errorf("a begun task was rejected")
	}
	equal(t, "task after the refused reject", look(ctx, t, s, task.ID), before)
	equal(t, "gate", begin(ctx, t, s, task.ID, 0).Gate, taskstore.GateOpen)
}

// dispatchedOrRejected checks that Dispatched and Reject exclude each other. Otherwise a
// dispatcher with a slow queue could reject a task that another dispatcher accepted.
func dispatchedOrRejected(ctx context.Context, t T, s Subject) {
	accepted, refused := create(ctx, t, s, Draft(2)), create(ctx, t, s, Draft(2))
	must(t, s.Dispatched(ctx, accepted.ID, []uint64{7}), "dispatched")
	if reject(ctx, t, s, accepted.ID, "too late") {
		t.Errorf("a dispatched task was rejected")
	}
	equal(t, "state", look(ctx, t, s, accepted.ID).State, procfleet.TaskAccepted)
	if !reject(ctx, t, s, refused.ID, "the queue is full") {
		t.Errorf("reject answers false")
	}
	if err := s.Dispatched(ctx, refused.ID, []uint64{8}); !errors.Is(err, taskstore.ErrRejected) || errors.Is(err, taskstore.ErrUnavailable) {
		t.Errorf("a rejected task was dispatched: %v", err)
	}
	equal(t, "dispatched", look(ctx, t, s, refused.ID).Dispatched, false)
}

func finishedNotRejected(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	record(ctx, t, s, task.ID, serverResult(0, procfleet.ReasonUnreachable), serverResult(1, procfleet.ReasonUnreachable))
	if reject(ctx, t, s, task.ID, "too late") {
		t.Errorf("a finished task was rejected")
	}
	equal(t, "state", look(ctx, t, s, task.ID).State, procfleet.TaskFinished)
}

func rejectOrBegin(ctx context.Context, t T, s Subject) {
	for range s.rounds(25, 200) {
		task := create(ctx, t, s, Draft(1))
		var rejected, begun atomic.Bool
		together(2, func(i int) {
			if i == 0 {
				ok, err := s.Reject(ctx, task.ID, "full")
				if err != nil {
					t.Errorf("reject: %v", err)
				}
				rejected.Store(ok)
				return
			}
			b, err := s.Begin(ctx, task.ID, 0, 0)
			if err != nil {
				t.Errorf("begin: %v", err)
			}
			begun.Store(b.Gate == taskstore.GateOpen)
		})
		if rejected.Load() == begun.Load() {
			t.Fatalf("rejected %v and begun %v at once", rejected.Load(), begun.Load())
		}
		want := procfleet.TaskRunning
		if rejected.Load() {
			want = procfleet.TaskRejected
		}
		equal(t, "state", look(ctx, t, s, task.ID).State, want)
	}
}
