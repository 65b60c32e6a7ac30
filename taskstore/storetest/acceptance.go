package storetest

import (
	"context"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func acceptanceChecks() []Check {
	return []Check{
		{Name: "create keeps all it is given", Fn: createKeepsAll},
		{Name: "a task read is a copy", Fn: taskIsCopy},
		{Name: "numbers strictly increase", Fn: numbersIncrease, Heavy: true},
		{Name: "numbers increase when the clock goes back", Fn: numbersSurviveClock, Needs: Needs{Advance: true}},
		{Name: "dispatched is noted", Fn: dispatchedIsNoted},
		{Name: "tasks are listed newest first", Fn: tasksNewestFirst},
		{Name: "a task has as many chunks as cloud areas", Fn: manyCloudAreas, Heavy: true},
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
		Actions:   d.Actions, Dialect: d.Dialect, Application: d.Application, Business: d.Business, Callback: d.Callback, Origin: d.Origin, Trace: d.Trace,
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

func dispatchedIsNoted(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(600))
	for range 2 {
		must(t, s.Dispatched(ctx, task.ID, []uint64{5, 7, 1 << 40}), "dispatched")
	}
	if !look(ctx, t, s, task.ID).Dispatched {
		t.Errorf("the task is not dispatched")
	}
	want := []taskstore.UndoneChunk{{Chunk: 0, Sequence: 5}, {Chunk: 1, Sequence: 7}, {Chunk: 2, Sequence: 1 << 40}}
	undone, err := s.Undone(ctx, task.ID)
	must(t, err, "undone")
	equal(t, "undone chunks", undone, want)
}

// manyCloudAreas runs the life cycle of a task with one host, and so one chunk, in each
// of many cloud areas: more chunks than fit into one call of the underlying storage.
func manyCloudAreas(ctx context.Context, t T, s Subject) {
	const areas = 9000 // more than the 8000 values that a call of Lua takes
	d := Draft(1)
	small := d.Chunks[0]
	small.Specs = small.Specs[:1]
	d.Chunks = make([]procfleet.Chunk, areas)
	sequences := make([]uint64, areas)
	for i := range d.Chunks {
		c := small
		c.Cloud, c.First = procfleet.CloudArea(i), i
		c.Items = []procfleet.Item{{Action: procfleet.ActionStart, Target: procfleet.Target{Host: host(c.Cloud, i)}}}
		d.Chunks[i], sequences[i] = c, uint64(i+1)
	}
	task := create(ctx, t, s, d)
	must(t, s.Dispatched(ctx, task.ID, sequences), "dispatched")
	for _, c := range []int{0, areas / 2, areas - 1} {
		equal(t, "chunk", begin(ctx, t, s, task.ID, c).Chunk, d.Chunks[c])
		must(t, s.Delivered(ctx, task.ID, c, []int{c}, true), "delivered")
	}
	left := undone(ctx, t, s, task.ID)
	equal(t, "number of chunks left", len(left), areas-3)
	equal(t, "last chunk left", left[len(left)-1], taskstore.UndoneChunk{Chunk: areas - 2, Sequence: areas - 1})
	equal(t, "results applied", record(ctx, t, s, task.ID, succeeded(upTo(areas)...)...), taskstore.Recorded{Known: true, Applied: areas, Completed: true})
	equal(t, "pages", len(pages(ctx, t, s, task.ID, taskstore.ResultQuery{Limit: 1000})), areas)

	rejected := create(ctx, t, s, d)
	if !reject(ctx, t, s, rejected.ID, "full") {
		t.Errorf("the task was not rejected")
	}
	d.Timeout, d.Retention = 6*time.Second, time.Second // Timeout exceeds the time that Create needs for all chunks
	gone := create(ctx, t, s, d)
	s.untilGone(ctx, t, gone.ID, d.Timeout+d.Retention)
	goneEverywhere(ctx, t, s, gone.ID)
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
