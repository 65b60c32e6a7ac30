package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// transitions returns the transitions of a task without their times, which it checks.
func transitions(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID) []procfleet.Transition {
	t.Helper()
	task := look(ctx, t, s, id)
	list, err := s.Transitions(ctx, id, 0, task.Transitions)
	must(t, err, "transitions")
	now, err := s.Now(ctx)
	must(t, err, "now")
	last := task.CreatedAt
	for i := range list {
		at := list[i].At
		if at.Before(last) || at.After(now) {
			t.Errorf("transition %d is of %s, after one of %s, now %s", i+1, at, last, now)
		}
		last, list[i].At = at, time.Time{}
	}
	return list
}

func transitionsInOrder(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	equal(t, "transitions of a new task", transitions(ctx, t, s, task.ID), []procfleet.Transition(nil))
	const why = `a "reason" of 100 %, höher`
	pause(ctx, t, s, task.ID, why)
	pause(ctx, t, s, task.ID, "again")
	resume(ctx, t, s, task.ID)
	resume(ctx, t, s, task.ID)
	_, err := s.CancelItems(ctx, task.ID, []taskstore.ChunkItems{{Chunk: 0, Items: []int{1, 2}}}, procfleet.CancelInterrupt, why, taskstore.AnySeq)
	must(t, err, "cancel items")
	_, err = s.Pause(ctx, task.ID, "other seq", 100)
	if !errors.Is(err, taskstore.ErrSeq) {
		t.Errorf("pause with another seq: %v", err)
	}
	_, err = s.Cancel(ctx, task.ID, procfleet.CancelDrain, "", taskstore.AnySeq)
	must(t, err, "cancel")
	want := []procfleet.Transition{
		{Kind: procfleet.TransitionHeld, Seq: 1, Hold: procfleet.HoldOperator, Reason: why},
		{Kind: procfleet.TransitionResumed, Seq: 2, Hold: procfleet.HoldOperator},
		{Kind: procfleet.TransitionItemsCancelled, Seq: 3, Mode: procfleet.CancelInterrupt, Reason: why},
		{Kind: procfleet.TransitionCancelled, Seq: 4, Mode: procfleet.CancelDrain},
	}
	equal(t, "transitions", transitions(ctx, t, s, task.ID), want)
	second, err := s.Transitions(ctx, task.ID, 1, 2)
	must(t, err, "second transition")
	if len(second) != 1 || second[0].Seq != 2 {
		t.Errorf("the second transition is %+v", second)
	}
	nothing, err := s.Transitions(ctx, task.ID, 4, 4)
	if must(t, err, "no transitions"); len(nothing) > 0 {
		t.Errorf("after the last transition: %+v", nothing)
	}
	if _, err := s.Transitions(ctx, task.ID, 0, 5); !errors.Is(err, taskstore.ErrNotFound) {
		t.Errorf("more transitions than the task has: %v", err)
	}
	if _, err := s.Transitions(ctx, "GSETASK:20200101000000:1", 0, 1); !errors.Is(err, taskstore.ErrNotFound) {
		t.Errorf("transitions of an unknown task: %v", err)
	}
}

func holdsAreTransitions(ctx context.Context, t T, s Subject) {
	d := rolloutDraft(9, 0, 1, 2, 3)
	d.Rollout.Approval = true
	task := create(ctx, t, s, d)
	advanceClosed(ctx, t, s, task.ID, "night")
	advance(ctx, t, s, task.ID)
	record(ctx, t, s, task.ID, succeeded(0, 1, 2)...)
	advance(ctx, t, s, task.ID)
	_, err := s.EndHold(ctx, task.ID, procfleet.HoldApproval, 0, taskstore.AnySeq)
	must(t, err, "approve")
	advance(ctx, t, s, task.ID)
	record(ctx, t, s, task.ID, failed(3)...)
	advance(ctx, t, s, task.ID)
	_, err = s.EndHold(ctx, task.ID, procfleet.HoldBudget, 0, taskstore.AnySeq)
	if !errors.Is(err, taskstore.ErrFailures) {
		t.Errorf("resumed with a budget that is used up: %v", err)
	}
	_, err = s.EndHold(ctx, task.ID, procfleet.HoldBudget, 1, taskstore.AnySeq)
	must(t, err, "end of a hold")
	want := []procfleet.Transition{
		{Kind: procfleet.TransitionHeld, Seq: 1, Hold: procfleet.HoldWindow, Reason: "night"},
		{Kind: procfleet.TransitionResumed, Seq: 2, Hold: procfleet.HoldWindow},
		{Kind: procfleet.TransitionHeld, Seq: 3, Hold: procfleet.HoldApproval},
		{Kind: procfleet.TransitionApproved, Seq: 4, Stage: 1},
		{Kind: procfleet.TransitionHeld, Seq: 5, Hold: procfleet.HoldBudget, Stage: 1},
		{Kind: procfleet.TransitionResumed, Seq: 6, Hold: procfleet.HoldBudget, Stage: 1},
	}
	equal(t, "transitions", transitions(ctx, t, s, task.ID), want)

	judged := rolloutDraft(9, 0, 1, 3)
	judged.Rollout.Auto = true
	task = create(ctx, t, s, judged)
	advance(ctx, t, s, task.ID)
	record(ctx, t, s, task.ID, succeeded(0, 1, 2)...)
	advance(ctx, t, s, task.ID)
	_, err = s.JudgeStage(ctx, task.ID, 0, procfleet.Hold{Kind: procfleet.HoldUnhealthy, Reason: "2 of 2"})
	must(t, err, "judge")
	_, err = s.EndHold(ctx, task.ID, procfleet.HoldUnhealthy, 0, taskstore.AnySeq)
	must(t, err, "end of a hold")
	advance(ctx, t, s, task.ID)
	equal(t, "transitions of an automatic gate", transitions(ctx, t, s, task.ID), []procfleet.Transition{
		{Kind: procfleet.TransitionHeld, Seq: 1, Hold: procfleet.HoldUnhealthy, Reason: "2 of 2"},
		{Kind: procfleet.TransitionResumed, Seq: 2, Hold: procfleet.HoldUnhealthy},
		{Kind: procfleet.TransitionStage, Seq: 3, Stage: 1},
	})
}

func sentTransitions(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(1))
	for range 2 {
		pause(ctx, t, s, task.ID, "")
		resume(ctx, t, s, task.ID)
	}
	for _, upto := range []struct{ record, want int }{{0, 0}, {3, 3}, {1, 3}, {4, 4}} {
		must(t, s.TransitionsSent(ctx, task.ID, upto.record), "record published transitions")
		equal(t, "published transitions", look(ctx, t, s, task.ID).TransitionsSent, upto.want)
	}
	equal(t, "transitions", look(ctx, t, s, task.ID).Transitions, 4)
	if err := s.TransitionsSent(ctx, "GSETASK:20200101000000:1", 1); !errors.Is(err, taskstore.ErrNotFound) {
		t.Errorf("published transitions of an unknown task: %v", err)
	}
}

func transitionsSurvive(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	pause(ctx, t, s, task.ID, "before")
	must(t, s.TransitionsSent(ctx, task.ID, 1), "record published transitions")
	resume(ctx, t, s, task.ID)
	before := transitions(ctx, t, s, task.ID)
	again := s.Reopen()
	equal(t, "transitions", transitions(ctx, t, again, task.ID), before)
	equal(t, "published transitions", look(ctx, t, again, task.ID).TransitionsSent, 1)
}
