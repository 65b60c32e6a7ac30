package storetest

import (
	"context"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func deliveryChecks() []Check {
	return []Check{
		{Name: "begin gives the chunk and its open items", Fn: beginGivesChunk},
		{Name: "first begun stays", Fn: firstBegunStays},
		{Name: "begin of a chunk that is not there", Fn: beginNoChunk},
		{Name: "begin of a finished chunk", Fn: beginFinishedChunk},
		{Name: "begin of a done chunk", Fn: beginDoneChunk},
		{Name: "begin of an overdue task", Fn: beginOverdue},
		{Name: "delivered moves pending items only", Fn: deliveredMovesPending},
	}
}

func beginGivesChunk(ctx context.Context, t T, s Subject) {
	d := Draft(300)
	task := create(ctx, t, s, d)
	b := begin(ctx, t, s, task.ID, 1)
	now, err := s.Now(ctx)
	must(t, err, "now")
	if b.Gate != taskstore.GateOpen || !b.FirstBegun.Equal(b.Now) || b.Now.After(now) || b.Now.Before(task.CreatedAt.Add(-time.Second)) {
		t.Errorf("gate %s, now %v, first begun %v", b.Gate, b.Now, b.FirstBegun)
	}
	equal(t, "chunk", b.Chunk, d.Chunks[1])
	equal(t, "open items", b.Open, upTo(300-256))
	equal(t, "state of the begun task", b.Task.State, procfleet.TaskRunning)
	equal(t, "begun task", b.Task, look(ctx, t, s, task.ID))

	must(t, s.Delivered(ctx, task.ID, 1, []int{257}, false), "delivered")
	record(ctx, t, s, task.ID, agentResult(256, procfleet.ReasonSucceeded), serverResult(258, procfleet.ReasonTimedOut), agentResult(0, procfleet.ReasonSucceeded))
	b = begin(ctx, t, s, task.ID, 1)
	equal(t, "open items after two results", b.Open, append([]int{1}, upTo(300 - 256)[3:]...))
	equal(t, "delivered items", b.Delivered, []int{1})
}

func firstBegunStays(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(1))
	first := begin(ctx, t, s, task.ID, 0)
	s.pass(ctx, t, 20*time.Millisecond, "begin at a later moment", func() bool {
		return begin(ctx, t, s, task.ID, 0).Now.After(first.Now)
	})
	if again := begin(ctx, t, s, task.ID, 0); !again.FirstBegun.Equal(first.Now) {
		t.Errorf("first begun at %v, then at %v", first.Now, again.FirstBegun)
	}
}

func beginNoChunk(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(3))
	for _, chunk := range []int{-1, 1, 1 << 20} {
		equal(t, "gate", begin(ctx, t, s, task.ID, chunk).Gate, taskstore.GateGone)
		_, err := s.Chunk(ctx, task.ID, chunk)
		notFound(t, "chunk", err)
	}
	if !reject(ctx, t, s, task.ID, "full") {
		t.Errorf("begin of a chunk that is not there began the task")
	}
}

func beginFinishedChunk(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	for i := 256; i < 300; i++ {
		record(ctx, t, s, task.ID, agentResult(i, procfleet.ReasonSucceeded))
	}
	equal(t, "gate", begin(ctx, t, s, task.ID, 1).Gate, taskstore.GateFinished)
	equal(t, "gate of the other chunk", begin(ctx, t, s, task.ID, 0).Gate, taskstore.GateOpen)
	record(ctx, t, s, task.ID, succeeded(upTo(256)...)...)
	equal(t, "gate", begin(ctx, t, s, task.ID, 0).Gate, taskstore.GateFinished)
}

func beginDoneChunk(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	begin(ctx, t, s, task.ID, 0)
	must(t, s.Delivered(ctx, task.ID, 0, upTo(256), false), "delivered")
	equal(t, "gate before done", begin(ctx, t, s, task.ID, 0).Gate, taskstore.GateOpen)
	must(t, s.Delivered(ctx, task.ID, 0, nil, true), "done")
	equal(t, "gate", begin(ctx, t, s, task.ID, 0).Gate, taskstore.GateFinished)
	must(t, s.Delivered(ctx, task.ID, 0, nil, false), "delivered")
	equal(t, "gate still", begin(ctx, t, s, task.ID, 0).Gate, taskstore.GateFinished)
	equal(t, "gate of the other chunk", begin(ctx, t, s, task.ID, 1).Gate, taskstore.GateOpen)
}

func beginOverdue(ctx context.Context, t T, s Subject) {
	d := Draft(300)
	d.Timeout = 300 * time.Millisecond
	task := create(ctx, t, s, d)
	s.pass(ctx, t, time.Second, "gate is overdue", func() bool {
		return begin(ctx, t, s, task.ID, 0).Gate == taskstore.GateOverdue
	})
	if b := begin(ctx, t, s, task.ID, 1); len(b.Open) > 0 || len(b.Chunk.Items) > 0 {
		t.Errorf("an overdue begin gives items: %+v", b)
	}
	equal(t, "record after the deadline", record(ctx, t, s, task.ID, succeeded(0)...).Applied, 1)
}

func deliveredMovesPending(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	begin(ctx, t, s, task.ID, 0)
	record(ctx, t, s, task.ID, agentResult(1, procfleet.ReasonCommandFailed), serverResult(2, procfleet.ReasonUnreachable))
	for range 2 {
		// Item 299 belongs to the other chunk; items -1 and 300 do not exist.
		must(t, s.Delivered(ctx, task.ID, 0, []int{0, 1, 2, 3, 299, -1, 300}, false), "delivered")
		got := look(ctx, t, s, task.ID)
		want := counts(296, procfleet.StatePending)
		want[procfleet.StateDelivered], want[procfleet.StateFailed], want[procfleet.StateUnreachable] = 2, 1, 1
		equal(t, "counters", got.Counts, want)
	}
	all := items(ctx, t, s, task)
	for i, want := range map[int]procfleet.State{
		0: procfleet.StateDelivered, 1: procfleet.StateFailed, 2: procfleet.StateUnreachable,
		3: procfleet.StateDelivered, 4: procfleet.StatePending, 299: procfleet.StatePending,
	} {
		equal(t, "state", all[i].State, want)
	}
	must(t, s.Delivered(ctx, task.ID, 1, []int{299}, false), "delivered")
	record(ctx, t, s, task.ID, succeeded(0, 3, 299)...)
	equal(t, "delivered items after their results", look(ctx, t, s, task.ID).Counts[procfleet.StateDelivered], 0)
	audit(ctx, t, s, task.ID)
}
