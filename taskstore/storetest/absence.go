package storetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func absenceChecks() []Check {
	return []Check{
		{Name: "an expired task is gone", Fn: expiredIsGone},
		{Name: "an unknown task is not found", Fn: unknownNotFound},
	}
}

// brief returns d with a lifetime of 300 ms, after which the store removes the task.
func brief(d taskstore.Draft) taskstore.Draft {
	d.Timeout, d.Retention = 150*time.Millisecond, 150*time.Millisecond
	return d
}

// untilGone waits until a task is gone, at most lifetime after its creation.
func (s Subject) untilGone(ctx context.Context, t T, id procfleet.TaskID, lifetime time.Duration) {
	t.Helper()
	s.pass(ctx, t, lifetime, "expired task is gone", func() bool {
		_, err := s.Task(ctx, id)
		return errors.Is(err, taskstore.ErrNotFound)
	})
}

func expiredIsGone(ctx context.Context, t T, s Subject) {
	kept := create(ctx, t, s, Draft(2))
	task := create(ctx, t, s, brief(Draft(2)))
	record(ctx, t, s, task.ID, succeeded(0, 1)...)
	s.untilGone(ctx, t, task.ID, time.Second)
	goneEverywhere(ctx, t, s, task.ID)
	s.pass(ctx, t, 0, "expired task is not listed", func() bool {
		return slices.Equal(list(ctx, t, s, 100), []procfleet.TaskID{kept.ID})
	})
	settle(ctx, t, s, task.ID)
	audit(ctx, t, s, kept.ID)
}

func unknownNotFound(ctx context.Context, t T, s Subject) {
	for _, id := range []procfleet.TaskID{"", "x", "GSETASK:", "GSETASK:20240229120000:5", "{}", "GSETASK:20240229120000:05"} {
		goneEverywhere(ctx, t, s, id)
		settle(ctx, t, s, id)
	}
	equal(t, "tasks", list(ctx, t, s, 10), []procfleet.TaskID{})
}

func goneEverywhere(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID) {
	t.Helper()
	_, err := s.Task(ctx, id)
	notFound(t, "task", err)
	_, err = s.Chunk(ctx, id, 0)
	notFound(t, "chunk", err)
	_, err = s.Owners(ctx, id, []int{0})
	notFound(t, "owners", err)
	_, _, err = s.Results(ctx, id, taskstore.ResultQuery{Limit: 10})
	notFound(t, "results", err)
	equal(t, "gate", begin(ctx, t, s, id, 0).Gate, taskstore.GateGone)
	equal(t, "record", record(ctx, t, s, id, succeeded(0)...), taskstore.Recorded{})
	if rejected, err := s.Reject(ctx, id, "x"); rejected || err != nil && !errors.Is(err, taskstore.ErrNotFound) {
		t.Errorf("reject: %v, %v", rejected, err)
	}
	for what, err := range map[string]error{
		"dispatched":  s.Dispatched(ctx, id, []uint64{1}),
		"delivered":   s.Delivered(ctx, id, 0, []int{0}, true),
		"republished": s.Republished(ctx, id, 0, 9),
		"published":   s.Published(ctx, id),
		"notified":    s.Notified(ctx, id),
	} {
		if err != nil {
			notFound(t, what, err)
		}
	}
	_, err = s.Task(ctx, id)
	notFound(t, "task after it was written to", err)
}

func notFound(t T, what string, err error) {
	t.Helper()
	if !errors.Is(err, taskstore.ErrNotFound) {
		t.Errorf("%s: %v, want ErrNotFound", what, err)
	}
}
