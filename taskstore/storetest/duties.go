package storetest

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func dutyChecks() []Check {
	return []Check{
		{Name: "a new task is due after its first visit", Fn: newTaskIsDue, Needs: Needs{Advance: true}},
		{Name: "a new task is due at its deadline if that is before", Fn: shortTaskIsDue, Needs: Needs{Advance: true}},
		{Name: "a task that was never written is due", Fn: orphanIsDue, Needs: Needs{Advance: true, Orphan: true}},
		{Name: "a task that continues a remembered id has a first visit of its own", Fn: continuedIsDueAnew, Needs: Needs{Advance: true, Orphan: true}},
		{Name: "due tasks come longest overdue first", Fn: dueInOrder},
		{Name: "revisit postpones", Fn: revisitPostpones},
		{Name: "a settled task is not due", Fn: settledNotDue},
		{Name: "a task that was told is not due", Fn: toldNotDue},
		{Name: "a task that is open after all stays due", Fn: openStaysDue},
		{Name: "undone chunks", Fn: undoneChunks},
		{Name: "undone names when a chunk was begun", Fn: undoneBegun},
	}
}

func due(ctx context.Context, t T, s taskstore.Store, shard, limit int) []procfleet.TaskID {
	t.Helper()
	ids, err := s.Due(ctx, shard, limit)
	must(t, err, "due")
	if len(ids) > limit {
		t.Errorf("%d tasks are due, asked for %d", len(ids), limit)
	}
	return ids
}

func dueEverywhere(ctx context.Context, t T, s taskstore.Store) []procfleet.TaskID {
	t.Helper()
	var ids []procfleet.TaskID
	for shard := range taskstore.SweepShards {
		ids = append(ids, due(ctx, t, s, shard, 100)...)
	}
	return ids
}

func newTaskIsDue(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(1))
	equal(t, "due at once", dueEverywhere(ctx, t, s), []procfleet.TaskID{})
	s.Advance(taskstore.FirstVisit)
	equal(t, "due after the first visit's time", due(ctx, t, s, taskstore.Shard(task.Number), 10), []procfleet.TaskID{task.ID})
	equal(t, "due in all shards", dueEverywhere(ctx, t, s), []procfleet.TaskID{task.ID})
}

func shortTaskIsDue(ctx context.Context, t T, s Subject) {
	plain, again := Draft(1), keyed("k", "body")
	plain.Timeout, again.Timeout = taskstore.FirstVisit/2, taskstore.FirstVisit/2
	want := []procfleet.TaskID{create(ctx, t, s, plain).ID, create(ctx, t, s, again).ID}
	equal(t, "due before the deadline", dueEverywhere(ctx, t, s), []procfleet.TaskID{})
	s.Advance(taskstore.FirstVisit / 2)
	got := dueEverywhere(ctx, t, s)
	slices.Sort(want) // as texts; that is not always their order as numbers
	slices.Sort(got)
	equal(t, "due at the deadline", got, want)
}

func orphanIsDue(ctx context.Context, t T, s Subject) {
	id := s.Orphan(keyed("k", "body"))
	s.Advance(taskstore.FirstVisit)
	equal(t, "due", dueEverywhere(ctx, t, s), []procfleet.TaskID{id})
	must(t, s.Settle(ctx, id), "settle")
	equal(t, "due when it was settled", dueEverywhere(ctx, t, s), []procfleet.TaskID{})
	// Its dispatcher was not dead, or the caller repeats.
	equal(t, "id", create(ctx, t, s, keyed("k", "body")).ID, id)
	s.Advance(taskstore.FirstVisit)
	equal(t, "due when it was written after all", dueEverywhere(ctx, t, s), []procfleet.TaskID{id})
}

func continuedIsDueAnew(ctx context.Context, t T, s Subject) {
	id := s.Orphan(keyed("k", "body"))
	s.Advance(time.Hour)
	equal(t, "due before it was written", dueEverywhere(ctx, t, s), []procfleet.TaskID{id})
	equal(t, "id", create(ctx, t, s, keyed("k", "body")).ID, id)
	equal(t, "due when it was just written", dueEverywhere(ctx, t, s), []procfleet.TaskID{})
	s.Advance(taskstore.FirstVisit)
	equal(t, "due after the first visit's time", dueEverywhere(ctx, t, s), []procfleet.TaskID{id})
}

// inShard creates tasks until n of them are of shard 0; numbers are moments,
// so that does not take long.
func inShard(ctx context.Context, t T, s taskstore.Store, n int) []procfleet.TaskID {
	t.Helper()
	var ids []procfleet.TaskID
	for range 1000 {
		task := create(ctx, t, s, Draft(1))
		if taskstore.Shard(task.Number) == 0 {
			ids = append(ids, task.ID)
		} else {
			must(t, s.Settle(ctx, task.ID), "settle")
		}
		if len(ids) == n {
			return ids
		}
	}
	t.Fatalf("1000 tasks, but not %d of shard 0", n)
	return nil
}

func dueInOrder(ctx context.Context, t T, s Subject) {
	ids := inShard(ctx, t, s, 3)
	last := slices.Clone(ids)
	slices.Reverse(last)
	for i, id := range last {
		must(t, s.Revisit(ctx, id, time.Duration(i)*20*time.Millisecond), "revisit")
	}
	s.pass(ctx, t, time.Second, "three tasks are due", func() bool { return len(due(ctx, t, s, 0, 10)) == 3 })
	equal(t, "due tasks", due(ctx, t, s, 0, 10), last)
	equal(t, "due tasks, at most two", due(ctx, t, s, 0, 2), last[:2])
	equal(t, "due tasks of another shard", due(ctx, t, s, 1, 10), []procfleet.TaskID{})
}

func revisitPostpones(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(1))
	must(t, s.Revisit(ctx, task.ID, 0), "revisit")
	s.pass(ctx, t, 0, "task is due", func() bool { return len(dueEverywhere(ctx, t, s)) == 1 })
	for range 2 {
		must(t, s.Revisit(ctx, task.ID, time.Hour), "revisit")
		equal(t, "due tasks", dueEverywhere(ctx, t, s), []procfleet.TaskID{})
	}
	must(t, s.Revisit(ctx, task.ID, 100*time.Millisecond), "revisit")
	s.pass(ctx, t, time.Second, "task is due again", func() bool { return slices.Contains(dueEverywhere(ctx, t, s), task.ID) })
}

func settledNotDue(ctx context.Context, t T, s Subject) {
	kept, settled := create(ctx, t, s, Draft(1)), create(ctx, t, s, Draft(1))
	for _, id := range []procfleet.TaskID{kept.ID, settled.ID} {
		must(t, s.Revisit(ctx, id, 0), "revisit")
	}
	for range 2 {
		must(t, s.Settle(ctx, settled.ID), "settle")
	}
	s.pass(ctx, t, time.Minute, "the other task is due", func() bool { return len(dueEverywhere(ctx, t, s)) > 0 })
	equal(t, "due tasks", dueEverywhere(ctx, t, s), []procfleet.TaskID{kept.ID})
	equal(t, "state of the settled task", look(ctx, t, s, settled.ID).State, procfleet.TaskAccepted)
}

func toldNotDue(ctx context.Context, t T, s Subject) {
	kept, told := create(ctx, t, s, Draft(1)), create(ctx, t, s, Draft(1))
	for _, id := range []procfleet.TaskID{kept.ID, told.ID} {
		record(ctx, t, s, id, succeeded(0)...)
		must(t, s.Revisit(ctx, id, 0), "revisit")
	}
	for range 2 {
		must(t, s.Notified(ctx, told.ID), "notified")
	}
	s.pass(ctx, t, time.Minute, "the other task is due", func() bool { return len(dueEverywhere(ctx, t, s)) > 0 })
	equal(t, "due tasks", dueEverywhere(ctx, t, s), []procfleet.TaskID{kept.ID})
	if look(ctx, t, s, told.ID).NotifyPending {
		t.Errorf("the task that was told is to be told")
	}
}

// openStaysDue is what a worker does that told an end which a fail-over has
// lost since: only the sweep can end the task again.
func openStaysDue(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	record(ctx, t, s, task.ID, succeeded(0)...)
	must(t, s.Revisit(ctx, task.ID, 0), "revisit")
	must(t, s.Notified(ctx, task.ID), "notified")
	s.pass(ctx, t, time.Second, "the open task is due", func() bool { return slices.Contains(dueEverywhere(ctx, t, s), task.ID) })
}

func undone(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID) []taskstore.ChunkDuty {
	t.Helper()
	duties, err := s.Undone(ctx, id)
	must(t, err, "undone")
	return duties
}

func undoneChunks(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(700))
	equal(t, "before anything was published", undone(ctx, t, s, task.ID), []taskstore.ChunkDuty{{Chunk: 0}, {Chunk: 1}, {Chunk: 2}})
	must(t, s.Dispatched(ctx, task.ID, []uint64{11, 12, 13}), "dispatched")
	must(t, s.Republished(ctx, task.ID, 1, 99), "republished")
	equal(t, "after a chunk was published again", undone(ctx, t, s, task.ID),
		[]taskstore.ChunkDuty{{Chunk: 0, Sequence: 11}, {Chunk: 1, Sequence: 99}, {Chunk: 2, Sequence: 13}})
	must(t, s.Delivered(ctx, task.ID, 0, nil, true), "done")
	must(t, s.Delivered(ctx, task.ID, 2, []int{512}, false), "delivered")
	equal(t, "after one was done", undone(ctx, t, s, task.ID), []taskstore.ChunkDuty{{Chunk: 1, Sequence: 99}, {Chunk: 2, Sequence: 13}})
}

func undoneBegun(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	b := begin(ctx, t, s, task.ID, 1)
	begin(ctx, t, s, task.ID, 1)
	duties := undone(ctx, t, s, task.ID)
	if len(duties) != 2 || !duties[0].Begun.IsZero() || !duties[1].Begun.Equal(b.FirstBegun) {
		t.Errorf("undone chunks are %+v; the second was begun at %v", duties, b.FirstBegun)
	}
}

func leaseChecks() []Check {
	return []Check{
		{Name: "a lease has one holder", Fn: leaseHasOneHolder},
		{Name: "one of many gets a lease", Fn: leaseRace},
		{Name: "a lease ends by itself", Fn: leaseEnds},
		{Name: "a renewed lease lasts", Fn: leaseRenewed, Needs: Needs{Advance: true}},
	}
}

func lease(ctx context.Context, t T, s taskstore.Store, name, holder string, ttl time.Duration) bool {
	t.Helper()
	held, err := s.Lease(ctx, name, holder, ttl)
	must(t, err, "lease")
	return held
}

func leaseHasOneHolder(ctx context.Context, t T, s Subject) {
	equal(t, "first holder", lease(ctx, t, s, "sweep/1", "a", time.Minute), true)
	equal(t, "second holder", lease(ctx, t, s, "sweep/1", "b", time.Minute), false)
	equal(t, "renewal", lease(ctx, t, s, "sweep/1", "a", time.Minute), true)
	equal(t, "another lease", lease(ctx, t, s, "sweep/2", "b", time.Minute), true)
	must(t, s.Release(ctx, "sweep/1", "b"), "release by one that does not hold it")
	equal(t, "second holder after its release", lease(ctx, t, s, "sweep/1", "b", time.Minute), false)
	must(t, s.Release(ctx, "sweep/1", "a"), "release")
	must(t, s.Release(ctx, "nobody's", "a"), "release of what nobody holds")
	equal(t, "second holder after the first's release", lease(ctx, t, s, "sweep/1", "b", time.Minute), true)
}

func leaseRace(ctx context.Context, t T, s Subject) {
	var holders atomic.Int32
	together(20, func(i int) {
		held, err := s.Lease(ctx, "sweep", string(rune('a'+i)), time.Minute)
		if err != nil {
			t.Errorf("lease: %v", err)
		}
		if held {
			holders.Add(1)
		}
	})
	equal(t, "holders", int(holders.Load()), 1)
}

func leaseEnds(ctx context.Context, t T, s Subject) {
	equal(t, "first holder", lease(ctx, t, s, "sweep", "a", 200*time.Millisecond), true)
	s.pass(ctx, t, time.Second, "the lease has ended", func() bool { return lease(ctx, t, s, "sweep", "b", time.Minute) })
	equal(t, "first holder after the end", lease(ctx, t, s, "sweep", "a", time.Minute), false)
	must(t, s.Release(ctx, "sweep", "a"), "release by the former holder")
	equal(t, "first holder still", lease(ctx, t, s, "sweep", "a", time.Minute), false)
}

func leaseRenewed(ctx context.Context, t T, s Subject) {
	equal(t, "first holder", lease(ctx, t, s, "sweep", "a", time.Minute), true)
	for range 3 {
		s.Advance(40 * time.Second)
		equal(t, "second holder", lease(ctx, t, s, "sweep", "b", time.Minute), false)
		equal(t, "renewal", lease(ctx, t, s, "sweep", "a", time.Minute), true)
	}
}
