package storetest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func controlChecks() []Check {
	return []Check{
		{Name: "a paused task opens no chunk until it is resumed", Fn: pauseHolds},
		{Name: "a repeated pause or resume changes nothing", Fn: controlRepeats},
		{Name: "a control call with another seq changes nothing", Fn: controlChecksSeq},
		{Name: "a task that has ended cannot be controlled", Fn: endedNotControlled},
		{Name: "a paused task records results and can end", Fn: pausedRecords},
		{Name: "no chunk opens after pause has returned", Fn: pauseAgainstBegin, Heavy: true},
		{Name: "resume moves the deadline by the time of the pause", Fn: resumeMovesDeadline, Needs: Needs{Advance: true}},
		{Name: "a pause survives a crash", Fn: pauseSurvives, Needs: Needs{Reopen: true}},
		{Name: "a cancel ends what was never begun", Fn: cancelEndsPending},
		{Name: "a cancel reopens the chunks that were begun", Fn: cancelReopens},
		{Name: "a cancel of a task that was never begun finishes it", Fn: cancelFinishes},
		{Name: "a cancel changes from drain to interrupt only", Fn: cancelRepeats},
		{Name: "no chunk begins after cancel has returned", Fn: cancelAgainstBegin, Heavy: true},
		{Name: "canceled items are not delivered", Fn: cancelItemsWithholds},
		{Name: "a worker carries out the cancels of items", Fn: itemCancelsAreCarriedOut},
		{Name: "a repeated cancel of items changes nothing", Fn: cancelItemsRepeats},
		{Name: "cancels of items survive a crash", Fn: itemCancelsSurvive, Needs: Needs{Reopen: true}},
		{Name: "a task and its retries name each other", Fn: retriesAreLinked},
		{Name: "transitions are stored in their order", Fn: transitionsInOrder},
		{Name: "each hold of a rollout is a transition", Fn: holdsAreTransitions},
		{Name: "published transitions are counted", Fn: sentTransitions},
		{Name: "transitions survive a crash", Fn: transitionsSurvive, Needs: Needs{Reopen: true}},
	}
}

func pause(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID, reason string) procfleet.Task {
	t.Helper()
	task, err := s.Pause(ctx, id, reason, taskstore.AnySeq)
	must(t, err, "pause")
	return task
}

func resume(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID) procfleet.Task {
	t.Helper()
	task, err := s.Resume(ctx, id, taskstore.AnySeq)
	must(t, err, "resume")
	return task
}

func pauseHolds(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	equal(t, "gate before", begin(ctx, t, s, task.ID, 1).Gate, taskstore.GateOpen)
	const reason = `wait for "db" to be up, now`
	paused := pause(ctx, t, s, task.ID, reason)
	now, err := s.Now(ctx)
	must(t, err, "now")
	if h := paused.Hold; !paused.Held() || h.Kind != procfleet.HoldOperator || h.Reason != reason || h.Since.Before(task.CreatedAt) || h.Since.After(now) {
		t.Errorf("hold is %+v", h)
	}
	equal(t, "seq", paused.Seq, 1)
	equal(t, "paused task", look(ctx, t, s, task.ID), paused)
	for chunk := range 2 {
		if b := begin(ctx, t, s, task.ID, chunk); b.Gate != taskstore.GateHeld || len(b.Open) > 0 || b.Now.IsZero() {
			t.Errorf("begin of a held task: %+v", b)
		}
	}
	equal(t, "undone chunks", len(undone(ctx, t, s, task.ID)), 2)

	resumed := resume(ctx, t, s, task.ID)
	equal(t, "seq", resumed.Seq, 2)
	equal(t, "hold", resumed.Hold, procfleet.Hold{})
	equal(t, "resumed task", look(ctx, t, s, task.ID), resumed)
	for chunk := range 2 {
		equal(t, "gate after", begin(ctx, t, s, task.ID, chunk).Gate, taskstore.GateOpen)
	}
}

func controlRepeats(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	equal(t, "resumed without a pause", resume(ctx, t, s, task.ID), task)
	paused := pause(ctx, t, s, task.ID, "first")
	again, err := s.Pause(ctx, task.ID, "second", 0)
	must(t, err, "repeated pause with the seq of before")
	equal(t, "paused twice", again, paused)
	resumed := resume(ctx, t, s, task.ID)
	again, err = s.Resume(ctx, task.ID, 1)
	must(t, err, "repeated resume with the seq of before")
	equal(t, "resumed twice", again, resumed)
}

func controlChecksSeq(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	refused := func(what string, got procfleet.Task, err error, want procfleet.Task) {
		t.Helper()
		if !errors.Is(err, taskstore.ErrSeq) || errors.Is(err, taskstore.ErrUnavailable) {
			t.Errorf("%s with another seq: %v", what, err)
		}
		equal(t, "returned task", got, want)
		equal(t, "task", look(ctx, t, s, task.ID), want)
	}
	got, err := s.Pause(ctx, task.ID, "", 1)
	refused("pause", got, err, task)
	paused, err := s.Pause(ctx, task.ID, "", 0)
	must(t, err, "pause")
	got, err = s.Resume(ctx, task.ID, 0)
	refused("resume", got, err, paused)
	_, err = s.Resume(ctx, task.ID, 1)
	must(t, err, "resume")
}

func endedNotControlled(ctx context.Context, t T, s Subject) {
	finished, rejected := create(ctx, t, s, Draft(2)), create(ctx, t, s, Draft(2))
	record(ctx, t, s, finished.ID, succeeded(0, 1)...)
	reject(ctx, t, s, rejected.ID, "full")
	for _, id := range []procfleet.TaskID{finished.ID, rejected.ID} {
		want := look(ctx, t, s, id)
		got, err := s.Pause(ctx, id, "", taskstore.AnySeq)
		if !errors.Is(err, taskstore.ErrDone) {
			t.Errorf("pause of a %s task: %v", want.State, err)
		}
		equal(t, "returned task", got, want)
		if _, err = s.Resume(ctx, id, taskstore.AnySeq); !errors.Is(err, taskstore.ErrDone) {
			t.Errorf("resume of a %s task: %v", want.State, err)
		}
		equal(t, "task", look(ctx, t, s, id), want)
	}
}

func pausedRecords(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	begin(ctx, t, s, task.ID, 0)
	pause(ctx, t, s, task.ID, "")
	must(t, s.Delivered(ctx, task.ID, 0, []int{0}, false), "delivered")
	equal(t, "delivered", look(ctx, t, s, task.ID).Counts[procfleet.StateDelivered], 1)
	equal(t, "completed", record(ctx, t, s, task.ID, succeeded(0, 1)...).Completed, true)
	ended := look(ctx, t, s, task.ID)
	equal(t, "state", ended.State, procfleet.TaskFinished)
	equal(t, "hold", ended.Hold, procfleet.Hold{})
	equal(t, "seq", ended.Seq, 1)
}

func pauseAgainstBegin(ctx context.Context, t T, s Subject) {
	for range s.rounds(20, 100) {
		task := create(ctx, t, s, Draft(1))
		var paused, late atomic.Bool
		together(3, func(i int) {
			if i == 0 {
				pause(ctx, t, s, task.ID, "")
				paused.Store(true)
				return
			}
			for range 5 {
				after := paused.Load()
				b, err := s.Begin(ctx, task.ID, 0, 0)
				if err != nil {
					t.Errorf("begin: %v", err)
				}
				if after && b.Gate != taskstore.GateHeld {
					late.Store(true)
				}
			}
		})
		if late.Load() || begin(ctx, t, s, task.ID, 0).Gate != taskstore.GateHeld {
			t.Fatalf("a chunk was opened after pause had returned")
		}
	}
}

func resumeMovesDeadline(ctx context.Context, t T, s Subject) {
	d := Draft(1)
	d.Timeout, d.Retention = time.Hour, 2*time.Hour
	short, long := create(ctx, t, s, d), create(ctx, t, s, d)
	pause(ctx, t, s, short.ID, "")
	pause(ctx, t, s, long.ID, "")
	s.Advance(90 * time.Minute)
	equal(t, "gate after the deadline", begin(ctx, t, s, short.ID, 0).Gate, taskstore.GateHeld)
	resumed := resume(ctx, t, s, short.ID)
	if moved := resumed.Deadline.Sub(short.Deadline); moved < 90*time.Minute || moved > 95*time.Minute {
		t.Errorf("the deadline moved by %v", moved)
	}
	equal(t, "expiry", resumed.ExpiresAt, short.ExpiresAt)
	equal(t, "gate", begin(ctx, t, s, short.ID, 0).Gate, taskstore.GateOpen)
	s.Advance(60 * time.Minute)
	equal(t, "deadline after a long pause", resume(ctx, t, s, long.ID).Deadline, long.ExpiresAt)
}

func pauseSurvives(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	paused := pause(ctx, t, s, task.ID, "maintenance")
	again := s.Reopen()
	equal(t, "task", look(ctx, t, again, task.ID), paused)
	equal(t, "gate", begin(ctx, t, again, task.ID, 0).Gate, taskstore.GateHeld)
}
