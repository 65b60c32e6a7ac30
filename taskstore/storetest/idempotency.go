package storetest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func idempotencyChecks() []Check {
	return []Check{
		{Name: "a repeat finds the first task", Fn: repeatFindsFirst},
		{Name: "simultaneous repeats make one task", Fn: simultaneousRepeats},
		{Name: "a used key with another body is a conflict", Fn: otherBodyConflicts},
		{Name: "keys belong to an application", Fn: keysPerApplication},
		{Name: "a rejected task frees its key", Fn: rejectedFreesKey},
		{Name: "a forgotten task frees its key", Fn: forgottenFreesKey},
		{Name: "no task is made too late, but one that was made is found", Fn: lateMakesNone},
		{Name: "a key whose task was never written continues with its id", Fn: orphanContinues, Needs: Needs{Orphan: true}},
	}
}

func keyed(key, body string) taskstore.Draft {
	d := Draft(3)
	d.IdempotencyKey, d.BodyHash = key, body
	return d
}

func repeatFindsFirst(ctx context.Context, t T, s Subject) {
	first := create(ctx, t, s, keyed("k", "body"))
	begin(ctx, t, s, first.ID, 0)
	again, created, err := s.Create(ctx, keyed("k", "body"))
	must(t, err, "repeat")
	if created {
		t.Errorf("the repeat made a task")
	}
	equal(t, "the task of the repeat", again, look(ctx, t, s, first.ID))
	record(ctx, t, s, first.ID, succeeded(0, 1, 2)...)
	if again, created, err = s.Create(ctx, keyed("k", "body")); err != nil || created || again.ID != first.ID {
		t.Errorf("repeat after the end: %s, created %v, %v", again.ID, created, err)
	}
	if a, b := create(ctx, t, s, keyed("", "body")), create(ctx, t, s, keyed("", "body")); a.ID == b.ID {
		t.Errorf("two drafts without a key are one task")
	}
	equal(t, "number of tasks", len(list(ctx, t, s, 100)), 3)
}

func simultaneousRepeats(ctx context.Context, t T, s Subject) {
	var made atomic.Int32
	ids := make([]procfleet.TaskID, 20)
	together(len(ids), func(i int) {
		task, created, err := s.Create(ctx, keyed("k", "body"))
		if err != nil {
			t.Errorf("create: %v", err)
		}
		if created {
			made.Add(1)
		}
		ids[i] = task.ID
	})
	if slices.Sort(ids); ids[0] != ids[len(ids)-1] || made.Load() != 1 {
		t.Errorf("%d of %d repeats made a task; ids from %s to %s", made.Load(), len(ids), ids[0], ids[len(ids)-1])
	}
	equal(t, "number of tasks", len(list(ctx, t, s, 100)), 1)
}

func otherBodyConflicts(ctx context.Context, t T, s Subject) {
	first := create(ctx, t, s, keyed("k", "body"))
	if _, created, err := s.Create(ctx, keyed("k", "other")); !errors.Is(err, taskstore.ErrConflict) || created {
		t.Errorf("another body: created %v, %v; want ErrConflict", created, err)
	}
	equal(t, "tasks", list(ctx, t, s, 100), []procfleet.TaskID{first.ID})
}

func keysPerApplication(ctx context.Context, t T, s Subject) {
	first := create(ctx, t, s, keyed("k", "body"))
	d := keyed("k", "other")
	d.Application = "bank"
	if second := create(ctx, t, s, d); second.ID == first.ID {
		t.Errorf("two applications share a task")
	}
	// Application x with key ab must not equal application xa with key b.
	d = keyed("ab", "third")
	d.Application = "x"
	create(ctx, t, s, d)
	d.Application, d.IdempotencyKey, d.BodyHash = "xa", "b", "fourth"
	create(ctx, t, s, d)
	for _, sep := range []string{":", "\x00", "/"} {
		d.Application, d.IdempotencyKey, d.BodyHash = "y"+sep+"a", "b", "fifth"
		create(ctx, t, s, d)
		d.Application, d.IdempotencyKey, d.BodyHash = "y", "a"+sep+"b", "sixth"
		create(ctx, t, s, d)
	}
}

func rejectedFreesKey(ctx context.Context, t T, s Subject) {
	first := create(ctx, t, s, keyed("k", "body"))
	_, err := s.Reject(ctx, first.ID, "queue is full")
	must(t, err, "reject")
	second := create(ctx, t, s, keyed("k", "other"))
	if second.ID == first.ID || look(ctx, t, s, second.ID).State != procfleet.TaskAccepted {
		t.Errorf("the key of rejected task %s gives task %s", first.ID, second.ID)
	}
	if again, created, err := s.Create(ctx, keyed("k", "other")); err != nil || created || again.ID != second.ID {
		t.Errorf("repeat: %s, created %v, %v; want %s", again.ID, created, err, second.ID)
	}
	equal(t, "state of the first", look(ctx, t, s, first.ID).State, procfleet.TaskRejected)
}

func forgottenFreesKey(ctx context.Context, t T, s Subject) {
	first := create(ctx, t, s, brief(keyed("k", "body")))
	s.untilGone(ctx, t, first.ID, time.Second)
	var second procfleet.Task
	s.pass(ctx, t, 0, "key is free", func() bool {
		var err error
		second, _, err = s.Create(ctx, keyed("k", "other"))
		return err == nil
	})
	if second.ID == first.ID {
		t.Errorf("the key of a forgotten task gives its id")
	}
}

func lateMakesNone(ctx context.Context, t T, s Subject) {
	now, err := s.Now(ctx)
	must(t, err, "now")
	d := keyed("late", "body")
	d.NotAfter = now.Add(-time.Second)
	for range 2 {
		if _, created, err := s.Create(ctx, d); !errors.Is(err, taskstore.ErrExpired) || errors.Is(err, taskstore.ErrUnavailable) || created {
			t.Errorf("a second too late: created %v, %v; want ErrExpired", created, err)
		}
	}
	equal(t, "tasks", len(list(ctx, t, s, 100)), 0)
	d.NotAfter = now.Add(time.Hour)
	first := create(ctx, t, s, d)
	for what, at := range map[string]time.Time{"a second": now.Add(-time.Second), "decades": time.Unix(0, 0)} {
		if d.NotAfter = at; what == "decades" {
			d.Chunks = nil // a repeat needs no chunks
		}
		if again, created, err := s.Create(ctx, d); err != nil || created || again.ID != first.ID {
			t.Errorf("a repeat %s too late: %s, created %v, %v; want %s", what, again.ID, created, err, first.ID)
		}
		d.IdempotencyKey = "another " + what
		if _, created, err := s.Create(ctx, d); !errors.Is(err, taskstore.ErrExpired) || created {
			t.Errorf("%s too late for another key: created %v, %v; want ErrExpired", what, created, err)
		}
		d.IdempotencyKey = "late"
	}
}

func orphanContinues(ctx context.Context, t T, s Subject) {
	d := keyed("k", "body")
	id := s.Orphan(d)
	if _, err := s.Task(ctx, id); !errors.Is(err, taskstore.ErrNotFound) {
		t.Fatalf("the orphan can be read: %v", err)
	}
	task := create(ctx, t, s, d)
	equal(t, "id", task.ID, id)
	equal(t, "number", task.Number.TaskID(), id)
	if again, created, err := s.Create(ctx, d); err != nil || created || again.ID != id {
		t.Errorf("repeat: %s, created %v, %v; want %s", again.ID, created, err, id)
	}
	audit(ctx, t, s, id)
}
