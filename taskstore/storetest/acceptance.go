package storetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func acceptanceChecks() []Check {
	return []Check{
		{Name: "create keeps all it is given", Fn: createKeepsAll},
		{Name: "a task read is a copy", Fn: taskIsCopy},
		{Name: "numbers strictly increase", Fn: numbersIncrease},
		{Name: "numbers increase when the clock goes back", Fn: numbersSurviveClock, Needs: Needs{Advance: true}},
		{Name: "a repeat finds the first task", Fn: repeatFindsFirst},
		{Name: "simultaneous repeats make one task", Fn: simultaneousRepeats},
		{Name: "a used key with another body is a conflict", Fn: otherBodyConflicts},
		{Name: "keys belong to an application", Fn: keysPerApplication},
		{Name: "a rejected task frees its key", Fn: rejectedFreesKey},
		{Name: "a forgotten task frees its key", Fn: forgottenFreesKey},
		{Name: "a key whose task was never written continues with its id", Fn: orphanContinues, Needs: Needs{Orphan: true}},
		{Name: "dispatched is noted", Fn: dispatchedIsNoted},
		{Name: "tasks are listed newest first", Fn: tasksNewestFirst},
		{Name: "an expired task is gone", Fn: expiredIsGone},
		{Name: "an unknown task is not found", Fn: unknownNotFound},
	}
}

func createKeepsAll(ctx context.Context, t T, s Subject) {
	d := Draft(300)
	d.Lane = procfleet.BigLane(3)
	d.Actions = []procfleet.Action{procfleet.ActionStart, procfleet.ActionStatus}
	before, err := s.Now(ctx)
	must(t, err, "now")
	task := create(ctx, t, s, d)
	after, err := s.Now(ctx)
	must(t, err, "now")
	if task.ID != task.Number.TaskID() {
		t.Errorf("task %s has number %d, which belongs to %s", task.ID, task.Number, task.Number.TaskID())
	}
	if task.CreatedAt.Before(before.Add(-time.Second)) || task.CreatedAt.After(after.Add(time.Second)) {
		t.Errorf("created at %v, which is not between %v and %v", task.CreatedAt, before, after)
	}
	want := procfleet.Task{
		ID: task.ID, Number: task.Number, State: procfleet.TaskAccepted, Lane: d.Lane, Items: 300, Chunks: 2,
		Counts:    counts(300, procfleet.StatePending),
		CreatedAt: task.CreatedAt, Deadline: task.CreatedAt.Add(d.Timeout),
		ExpiresAt: task.CreatedAt.Add(d.Timeout + d.Retention),
		Actions:   d.Actions, Dialect: d.Dialect, Application: d.Application, Business: d.Business, Callback: d.Callback,
	}
	equal(t, "the new task", task, want)
	equal(t, "the stored task", look(ctx, t, s, task.ID), want)
	for c := range d.Chunks {
		b := begin(ctx, t, s, task.ID, c)
		equal(t, "the stored chunk", b.Chunk, d.Chunks[c])
	}
	audit(ctx, t, s, task.ID)
}

func counts(n int, state procfleet.State) procfleet.Counts {
	c := procfleet.Counts{}
	for _, s := range procfleet.States() {
		c[s] = 0
	}
	c[state] = n
	return c
}

func taskIsCopy(ctx context.Context, t T, s Subject) {
	d := Draft(2)
	task := create(ctx, t, s, d)
	d.Chunks[0].Items[0].Action = procfleet.ActionKill
	d.Actions[0] = procfleet.ActionKill
	for range 2 {
		task.Counts[procfleet.StatePending] = 77
		task.Actions[0] = procfleet.ActionKill
		task = look(ctx, t, s, task.ID)
		equal(t, "actions", task.Actions, []procfleet.Action{procfleet.ActionStart})
	}
	read, err := s.Chunk(ctx, task.ID, 0)
	must(t, err, "read chunk")
	read[0].Item.Action, read[1].Spec.Name = procfleet.ActionKill, "changed"
	again, err := s.Chunk(ctx, task.ID, 0)
	must(t, err, "read chunk")
	if again[0].Item.Action != procfleet.ActionStart || again[1].Spec.Name != "cache" {
		t.Errorf("a reader changed the stored chunk")
	}
}

func numbersIncrease(ctx context.Context, t T, s Subject) {
	const creators, each = 50, 4
	var mu sync.Mutex
	seen := map[procfleet.Number]bool{}
	together(creators, func(int) {
		last := procfleet.Number(0)
		for range each {
			task, _, err := s.Create(ctx, Draft(1))
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			if task.Number <= last {
				t.Errorf("number %d came after %d", task.Number, last)
			}
			last = task.Number
			mu.Lock()
			if seen[last] {
				t.Errorf("number %d was given twice", last)
			}
			seen[last] = true
			mu.Unlock()
		}
	})
}

func numbersSurviveClock(ctx context.Context, t T, s Subject) {
	last := procfleet.Number(0)
	for _, step := range []time.Duration{0, -time.Hour, 0, time.Minute, 2 * time.Hour, -time.Second} {
		s.Advance(step)
		task := create(ctx, t, s, Draft(1))
		if task.Number <= last {
			t.Errorf("number %d came after %d when the clock was moved by %v", task.Number, last, step)
		}
		last = task.Number
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
	// Where the name of one ends and the key begins must not matter.
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

// brief is a task that is forgotten soon.
func brief(d taskstore.Draft) taskstore.Draft {
	d.Timeout, d.Retention = 150*time.Millisecond, 150*time.Millisecond
	return d
}

func (s Subject) untilGone(ctx context.Context, t T, id procfleet.TaskID) {
	t.Helper()
	s.pass(ctx, t, time.Second, "expired task is gone", func() bool {
		_, err := s.Task(ctx, id)
		return errors.Is(err, taskstore.ErrNotFound)
	})
}

func forgottenFreesKey(ctx context.Context, t T, s Subject) {
	first := create(ctx, t, s, brief(keyed("k", "body")))
	s.untilGone(ctx, t, first.ID)
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

func dispatchedIsNoted(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(600))
	for range 2 {
		must(t, s.Dispatched(ctx, task.ID, []uint64{5, 7, 1 << 40}), "dispatched")
	}
	if !look(ctx, t, s, task.ID).Dispatched {
		t.Errorf("the task is not dispatched")
	}
	want := []taskstore.ChunkDuty{{Chunk: 0, Sequence: 5}, {Chunk: 1, Sequence: 7}, {Chunk: 2, Sequence: 1 << 40}}
	undone, err := s.Undone(ctx, task.ID)
	must(t, err, "undone")
	equal(t, "undone chunks", undone, want)
}

func list(ctx context.Context, t T, s taskstore.Store, limit int) []procfleet.TaskID {
	t.Helper()
	var ids []procfleet.TaskID
	q := taskstore.TaskQuery{Limit: limit}
	for {
		tasks, err := s.Tasks(ctx, q)
		must(t, err, "list tasks")
		if len(tasks) > limit {
			t.Fatalf("a list of at most %d has %d tasks", limit, len(tasks))
		}
		for _, task := range tasks {
			sound(t, task)
			ids = append(ids, task.ID)
			q.Before = task.Number
		}
		if len(tasks) < limit {
			return ids
		}
	}
}

func tasksNewestFirst(ctx context.Context, t T, s Subject) {
	equal(t, "tasks of an empty store", list(ctx, t, s, 3), []procfleet.TaskID{})
	var want []procfleet.TaskID
	for range 10 {
		want = append([]procfleet.TaskID{create(ctx, t, s, Draft(1)).ID}, want...)
	}
	for _, limit := range []int{1, 3, 10, 1000} {
		equal(t, "tasks, newest first", list(ctx, t, s, limit), want)
	}
	tasks, err := s.Tasks(ctx, taskstore.TaskQuery{Limit: 1})
	must(t, err, "list tasks")
	if len(tasks) == 1 {
		equal(t, "listed task", tasks[0], look(ctx, t, s, want[0]))
	}
}

func expiredIsGone(ctx context.Context, t T, s Subject) {
	kept := create(ctx, t, s, Draft(2))
	task := create(ctx, t, s, brief(Draft(2)))
	record(ctx, t, s, task.ID, succeeded(0, 1)...)
	s.untilGone(ctx, t, task.ID)
	goneEverywhere(ctx, t, s, task.ID)
	s.pass(ctx, t, 0, "expired task is not listed", func() bool {
		return slices.Equal(list(ctx, t, s, 100), []procfleet.TaskID{kept.ID})
	})
	must(t, s.Settle(ctx, task.ID), "settle a gone task")
	audit(ctx, t, s, kept.ID)
}

func unknownNotFound(ctx context.Context, t T, s Subject) {
	for _, id := range []procfleet.TaskID{"", "x", "GSETASK:", "GSETASK:20240229120000:5", "{}", "GSETASK:20240229120000:05"} {
		goneEverywhere(ctx, t, s, id)
		must(t, s.Settle(ctx, id), "settle an unknown task")
	}
	equal(t, "tasks", list(ctx, t, s, 10), []procfleet.TaskID{})
}

func goneEverywhere(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID) {
	t.Helper()
	_, err := s.Task(ctx, id)
	notFound(t, "task", err)
	_, err = s.Chunk(ctx, id, 0)
	notFound(t, "chunk", err)
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
