package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func sweepChecks() []Check {
	return []Check{
		{Name: "a new task is due after its first visit", Fn: newTaskIsDue, Needs: Needs{Advance: true}},
		{Name: "a new task is due at its deadline if that is before", Fn: shortTaskIsDue, Needs: Needs{Advance: true}},
		{Name: "a task that was never written is due", Fn: orphanIsDue, Needs: Needs{Advance: true, Orphan: true}},
		{Name: "a task that continues a remembered id has a first visit of its own", Fn: continuedIsDueAnew, Needs: Needs{Advance: true, Orphan: true}},
		{Name: "a task that is made late is visited, or not made", Fn: lateIsVisited, Needs: Needs{Advance: true, Delay: true}},
		{Name: "a short task that is made late is visited, or not made", Fn: shortLateIsVisited, Needs: Needs{Advance: true, Delay: true}},
		{Name: "a task that is made when the clock stepped back is visited, or not made", Fn: madeAfterStepBackIsVisited, Needs: Needs{Advance: true, Delay: true}},
		{Name: "a remembered id is not made late without a visit", Fn: lateOrphanIsVisited, Needs: Needs{Advance: true, Orphan: true, Delay: true}},
		{Name: "due tasks come longest overdue first", Fn: dueInOrder},
		{Name: "revisit postpones", Fn: revisitPostpones},
		{Name: "a settled task is not due", Fn: settledNotDue},
		{Name: "settling a visit leaves the one that was set since", Fn: settleLeavesNewVisit},
		{Name: "a sweep settles no task that is made meanwhile", Fn: madeWhileSettled, Needs: Needs{Advance: true, Orphan: true}},
		{Name: "a notified task is not due", Fn: notifiedNotDue},
		{Name: "several ends are notified at once", Fn: severalNotified},
		{Name: "a task that is open after all stays due", Fn: openStaysDue},
		{Name: "a task whose event was published has its callback left", Fn: publishedStaysPending},
		{Name: "an open task has no published event", Fn: openHasNoEvent},
		{Name: "a visit says since when it is due", Fn: dueSince, Needs: Needs{Advance: true}},
		{Name: "a visit is due when the clock steps back", Fn: dueAfterStepBack, Needs: Needs{Advance: true}},
		{Name: "a visit is never later than the longest", Fn: visitIsBounded, Needs: Needs{Advance: true}},
		{Name: "many visits are set and settled in one call", Fn: manyVisits},
		{Name: "tasks by id", Fn: tasksByID},
		{Name: "delivered items of many tasks", Fn: deliveredItems},
		{Name: "undone chunks", Fn: undoneChunks},
		{Name: "undone names when a chunk was begun", Fn: undoneBegun},
	}
}

func due(ctx context.Context, t T, s taskstore.Store, shard, limit int) []procfleet.TaskID {
	t.Helper()
	visits, err := s.Due(ctx, shard, limit)
	must(t, err, "due")
	if len(visits) > limit {
		t.Errorf("%d tasks are due, asked for %d", len(visits), limit)
	}
	ids := make([]procfleet.TaskID, len(visits))
	for i, v := range visits {
		ids[i] = v.Task
	}
	return ids
}

func revisit(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID, after time.Duration) {
	t.Helper()
	must(t, s.Revisit(ctx, taskstore.NextVisit{Task: id, After: after}), "revisit")
}

// settle removes the visits of tasks, independent of when they are due.
func settle(ctx context.Context, t T, s taskstore.Store, ids ...procfleet.TaskID) {
	t.Helper()
	visits := make([]taskstore.Visit, len(ids))
	for i, id := range ids {
		visits[i].Task = id
	}
	must(t, s.Settle(ctx, visits...), "settle")
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
	slices.Sort(want) // the order of ids as text may differ from their numeric order
	slices.Sort(got)
	equal(t, "due at the deadline", got, want)
}

func orphanIsDue(ctx context.Context, t T, s Subject) {
	id := s.Orphan(keyed("k", "body"))
	s.Advance(taskstore.FirstVisit)
	equal(t, "due", dueEverywhere(ctx, t, s), []procfleet.TaskID{id})
	settle(ctx, t, s, id)
	equal(t, "due when it was settled", dueEverywhere(ctx, t, s), []procfleet.TaskID{})
	// The dispatcher was only delayed, or the caller repeats the request.
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

// settleAbsent advances the clock and settles the due visits whose tasks were never
// written, as the sweep does.
func settleAbsent(ctx context.Context, t T, s Subject, after time.Duration) {
	t.Helper()
	s.Advance(after)
	for _, id := range dueEverywhere(ctx, t, s) {
		if _, err := s.Task(ctx, id); errors.Is(err, taskstore.ErrNotFound) {
			settle(ctx, t, s, id)
		}
	}
}

func lateIsVisited(ctx context.Context, t T, s Subject) {
	for _, d := range []taskstore.Draft{Draft(1), keyed("k", "body")} {
		late(ctx, t, s, d, time.Hour)
	}
}

func shortLateIsVisited(ctx context.Context, t T, s Subject) {
	for _, d := range []taskstore.Draft{Draft(1), keyed("k", "body")} {
		d.Timeout = taskstore.FirstVisit / 2
		late(ctx, t, s, d, d.Timeout)
	}
}

func madeAfterStepBackIsVisited(ctx context.Context, t T, s Subject) {
	for _, d := range []taskstore.Draft{Draft(1), keyed("k", "body")} {
		late(ctx, t, s, d, -time.Hour)
	}
}

func lateOrphanIsVisited(ctx context.Context, t T, s Subject) {
	d := keyed("k", "body")
	id := s.Orphan(d)
	settleAbsent(ctx, t, s, time.Hour)
	if task := late(ctx, t, s, d, time.Hour); task.ID != id {
		t.Errorf("the task is %s, want the remembered id %s", task.ID, id)
	}
}

// late creates a task; before Create writes the task, the clock advances and the sweep
// settles the task's visit.
func late(ctx context.Context, t T, s Subject, d taskstore.Draft, by time.Duration) procfleet.Task {
	t.Helper()
	before := list(ctx, t, s, 100)
	task, created, err := s.Delay(d, func() { settleAbsent(ctx, t, s, by) })
	if err != nil {
		equal(t, "tasks after a creation that failed", list(ctx, t, s, 100), before)
		return task
	}
	s.Advance(taskstore.FirstVisit)
	if !created || !slices.Contains(dueEverywhere(ctx, t, s), task.ID) {
		t.Errorf("task %s was made late (created %v) and has no visit: it never ends", task.ID, created)
	}
	return task
}

// inShard creates tasks until n of them are in shard 0 and returns their ids. Task
// numbers are times in microseconds, so the shards of new tasks are evenly distributed.
func inShard(ctx context.Context, t T, s taskstore.Store, n int) []procfleet.TaskID {
	t.Helper()
	var ids []procfleet.TaskID
	for range 1000 {
		task := create(ctx, t, s, Draft(1))
		if taskstore.Shard(task.Number) == 0 {
			ids = append(ids, task.ID)
		} else {
			settle(ctx, t, s, task.ID)
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
		revisit(ctx, t, s, id, time.Duration(i)*20*time.Millisecond)
	}
	s.pass(ctx, t, time.Second, "three tasks are due", func() bool { return len(due(ctx, t, s, 0, 10)) == 3 })
	equal(t, "due tasks", due(ctx, t, s, 0, 10), last)
	equal(t, "due tasks, at most two", due(ctx, t, s, 0, 2), last[:2])
	equal(t, "due tasks of another shard", due(ctx, t, s, 1, 10), []procfleet.TaskID{})
}

func revisitPostpones(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(1))
	revisit(ctx, t, s, task.ID, 0)
	s.pass(ctx, t, 0, "task is due", func() bool { return len(dueEverywhere(ctx, t, s)) == 1 })
	for range 2 {
		revisit(ctx, t, s, task.ID, time.Hour)
		equal(t, "due tasks", dueEverywhere(ctx, t, s), []procfleet.TaskID{})
	}
	revisit(ctx, t, s, task.ID, 100*time.Millisecond)
	s.pass(ctx, t, time.Second, "task is due again", func() bool { return slices.Contains(dueEverywhere(ctx, t, s), task.ID) })
}

func settledNotDue(ctx context.Context, t T, s Subject) {
	kept, settled := create(ctx, t, s, Draft(1)), create(ctx, t, s, Draft(1))
	for _, id := range []procfleet.TaskID{kept.ID, settled.ID} {
		revisit(ctx, t, s, id, 0)
	}
	for range 2 {
		settle(ctx, t, s, settled.ID)
	}
	s.pass(ctx, t, time.Minute, "the other task is due", func() bool { return len(dueEverywhere(ctx, t, s)) > 0 })
	equal(t, "due tasks", dueEverywhere(ctx, t, s), []procfleet.TaskID{kept.ID})
	equal(t, "state of the settled task", look(ctx, t, s, settled.ID).State, procfleet.TaskAccepted)
}

// settleLeavesNewVisit checks a sweep that settles a visit after the visit was changed.
func settleLeavesNewVisit(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(1))
	revisit(ctx, t, s, task.ID, 0)
	var read []taskstore.Visit
	shard := taskstore.Shard(task.Number)
	s.pass(ctx, t, time.Second, "task is due", func() bool { read = dueVisits(ctx, t, s, shard); return len(read) == 1 })
	revisit(ctx, t, s, task.ID, 20*time.Millisecond)
	must(t, s.Settle(ctx, read...), "settle")
	s.pass(ctx, t, time.Second, "task is due again", func() bool { return len(dueVisits(ctx, t, s, shard)) == 1 })
	must(t, s.Settle(ctx, dueVisits(ctx, t, s, shard)...), "settle")
	equal(t, "due after the visit was settled that it had", dueEverywhere(ctx, t, s), []procfleet.TaskID{})
}

// madeWhileSettled checks a repeat that creates the task of an orphaned id after the
// sweep found no task with this id.
func madeWhileSettled(ctx context.Context, t T, s Subject) {
	id := s.Orphan(keyed("k", "body"))
	s.Advance(time.Hour)
	n, err := id.Number()
	must(t, err, "number")
	read := dueVisits(ctx, t, s, taskstore.Shard(n))
	equal(t, "id", create(ctx, t, s, keyed("k", "body")).ID, id)
	must(t, s.Settle(ctx, read...), "settle")
	s.Advance(taskstore.FirstVisit)
	equal(t, "due", dueEverywhere(ctx, t, s), []procfleet.TaskID{id})
}

func dueVisits(ctx context.Context, t T, s taskstore.Store, shard int) []taskstore.Visit {
	t.Helper()
	visits, err := s.Due(ctx, shard, 100)
	must(t, err, "due")
	return visits
}

func notifiedNotDue(ctx context.Context, t T, s Subject) {
	kept, notified := create(ctx, t, s, Draft(1)), create(ctx, t, s, Draft(1))
	for _, id := range []procfleet.TaskID{kept.ID, notified.ID} {
		record(ctx, t, s, id, succeeded(0)...)
		revisit(ctx, t, s, id, 0)
	}
	for range 2 {
		must(t, s.Notified(ctx, notified.ID), "notified")
	}
	s.pass(ctx, t, time.Minute, "the other task is due", func() bool { return len(dueEverywhere(ctx, t, s)) > 0 })
	equal(t, "due tasks", dueEverywhere(ctx, t, s), []procfleet.TaskID{kept.ID})
	if look(ctx, t, s, notified.ID).NotifyPending {
		t.Errorf("the notified task has its notification pending")
	}
}

// severalNotified checks Notified with finished tasks, an id without a task, and a task
// that is open.
func severalNotified(ctx context.Context, t T, s Subject) {
	first, open, last := create(ctx, t, s, Draft(1)), create(ctx, t, s, Draft(1)), create(ctx, t, s, Draft(1))
	for _, id := range []procfleet.TaskID{first.ID, last.ID} {
		record(ctx, t, s, id, succeeded(0)...)
		revisit(ctx, t, s, id, 0)
	}
	revisit(ctx, t, s, open.ID, 0)
	must(t, s.Notified(ctx, first.ID, "GSETASK:20240229120000:5", open.ID, last.ID), "notified")
	for _, id := range []procfleet.TaskID{first.ID, last.ID} {
		if look(ctx, t, s, id).NotifyPending {
			t.Errorf("task %s is still to be notified", id)
		}
	}
	s.pass(ctx, t, time.Second, "the open task is due", func() bool { return slices.Contains(dueEverywhere(ctx, t, s), open.ID) })
	equal(t, "due tasks", dueEverywhere(ctx, t, s), []procfleet.TaskID{open.ID})
}

// publishedStaysPending checks a worker that was killed between event and callback: the
// next visit must send only the callback.
func publishedStaysPending(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(1))
	record(ctx, t, s, task.ID, succeeded(0)...)
	want := look(ctx, t, s, task.ID)
	if want.EventPublished {
		t.Errorf("the event of a new end is published: %+v", want)
	}
	want.EventPublished = true
	for range 2 {
		must(t, s.Published(ctx, task.ID), "published")
	}
	equal(t, "published task", look(ctx, t, s, task.ID), want)
	byID, err := s.TasksByID(ctx, []procfleet.TaskID{task.ID})
	must(t, err, "tasks by id")
	equal(t, "published task by id", byID, []procfleet.Task{want})
	revisit(ctx, t, s, task.ID, 0)
	s.pass(ctx, t, time.Second, "the published task is due", func() bool { return slices.Contains(dueEverywhere(ctx, t, s), task.ID) })
	must(t, s.Notified(ctx, task.ID), "notified")
	want.NotifyPending = false
	equal(t, "notified task", look(ctx, t, s, task.ID), want)
}

// openHasNoEvent checks a task whose end was published and then lost by a fail-over: the
// next end must be published too.
func openHasNoEvent(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	record(ctx, t, s, task.ID, succeeded(0)...)
	must(t, s.Published(ctx, task.ID), "published")
	record(ctx, t, s, task.ID, succeeded(1)...)
	if got := look(ctx, t, s, task.ID); got.EventPublished || !got.NotifyPending {
		t.Errorf("the event of an end after it was published counts as published: %+v", got)
	}
}

// openStaysDue checks a task whose end was notified and then lost by a fail-over: the
// task keeps its visit, because only the sweep can end the task again.
func openStaysDue(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(2))
	record(ctx, t, s, task.ID, succeeded(0)...)
	revisit(ctx, t, s, task.ID, 0)
	must(t, s.Notified(ctx, task.ID), "notified")
	s.pass(ctx, t, time.Second, "the open task is due", func() bool { return slices.Contains(dueEverywhere(ctx, t, s), task.ID) })
}

func dueSince(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(1))
	s.Advance(taskstore.FirstVisit + time.Minute)
	visits, err := s.Due(ctx, taskstore.Shard(task.Number), 10)
	must(t, err, "due")
	if len(visits) != 1 || visits[0].Task != task.ID || visits[0].At.Sub(task.CreatedAt).Round(time.Second) != taskstore.FirstVisit {
		t.Errorf("due are %v, want task %s since %v after %v", visits, task.ID, taskstore.FirstVisit, task.CreatedAt)
	}
}

// dueAfterStepBack checks a clock that was an hour ahead and was corrected: visits must
// not be delayed by an hour.
func dueAfterStepBack(ctx context.Context, t T, s Subject) {
	fresh, old := create(ctx, t, s, Draft(1)), create(ctx, t, s, Draft(1))
	revisit(ctx, t, s, old.ID, 30*time.Second)
	equal(t, "due before the step", dueEverywhere(ctx, t, s), []procfleet.TaskID{})
	s.Advance(-time.Hour)
	got := dueEverywhere(ctx, t, s)
	slices.Sort(got)
	equal(t, "due after the step", got, slices.Sorted(slices.Values([]procfleet.TaskID{fresh.ID, old.ID})))
	revisit(ctx, t, s, fresh.ID, time.Minute)
	equal(t, "due after a new visit was set", dueEverywhere(ctx, t, s), []procfleet.TaskID{old.ID})
	settle(ctx, t, s, old.ID)
	equal(t, "due after the other was settled", dueEverywhere(ctx, t, s), []procfleet.TaskID{})
	s.Advance(time.Minute)
	equal(t, "due at the new visit", dueEverywhere(ctx, t, s), []procfleet.TaskID{fresh.ID})
}

func visitIsBounded(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(1))
	revisit(ctx, t, s, task.ID, 24*time.Hour)
	equal(t, "due at once", dueEverywhere(ctx, t, s), []procfleet.TaskID{})
	s.Advance(taskstore.MaxVisit)
	equal(t, "due after the longest time", dueEverywhere(ctx, t, s), []procfleet.TaskID{task.ID})
}

func manyVisits(ctx context.Context, t T, s Subject) {
	var (
		ids  []procfleet.TaskID
		next []taskstore.NextVisit
	)
	for range 40 {
		id := create(ctx, t, s, Draft(1)).ID
		ids, next = append(ids, id), append(next, taskstore.NextVisit{Task: id})
	}
	must(t, s.Revisit(ctx), "revisit nothing")
	must(t, s.Revisit(ctx, next...), "revisit")
	s.pass(ctx, t, time.Second, "all tasks are due", func() bool { return len(dueEverywhere(ctx, t, s)) == len(ids) })
	must(t, s.Settle(ctx), "settle nothing")
	settle(ctx, t, s, ids[1:]...)
	equal(t, "due after all others were settled", dueEverywhere(ctx, t, s), ids[:1])
}

func tasksByID(ctx context.Context, t T, s Subject) {
	a, b := create(ctx, t, s, Draft(1)), create(ctx, t, s, Draft(300))
	tasks, err := s.TasksByID(ctx, []procfleet.TaskID{b.ID, "GSETASK:20240229120000:5", "", a.ID, b.ID})
	must(t, err, "tasks by id")
	equal(t, "tasks", tasks, []procfleet.Task{b, {}, {}, a, b})
	tasks, err = s.TasksByID(ctx, nil)
	must(t, err, "no tasks by id")
	equal(t, "no tasks", tasks, []procfleet.Task{})
}

func deliveredItems(ctx context.Context, t T, s Subject) {
	some, none, chunks := create(ctx, t, s, Draft(5)), create(ctx, t, s, Draft(2)), create(ctx, t, s, Draft(300))
	for id, items := range map[procfleet.TaskID][]int{some.ID: {1, 3, 4}, chunks.ID: {0}} {
		must(t, s.Delivered(ctx, id, 0, items, false), "delivered")
	}
	record(ctx, t, s, some.ID, succeeded(3)...)
	gone := procfleet.Task{ID: "GSETASK:20240229120000:5", Items: 1, Chunks: 1}
	delivered, err := s.DeliveredItems(ctx, []procfleet.Task{none, some, {}, gone, chunks, some})
	must(t, err, "delivered items")
	all := items(ctx, t, s, some)
	want := [][]procfleet.ItemResult{nil, {all[1], all[4]}, nil, nil, nil, {all[1], all[4]}}
	equal(t, "tasks answered", len(delivered), len(want))
	for i := range delivered {
		equalItems(t, "delivered items", delivered[i], want[i])
	}
}

func undone(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID) []taskstore.UndoneChunk {
	t.Helper()
	chunks, err := s.Undone(ctx, id)
	must(t, err, "undone")
	return chunks
}

func undoneChunks(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(700))
	equal(t, "before anything was published", undone(ctx, t, s, task.ID), []taskstore.UndoneChunk{{Chunk: 0}, {Chunk: 1}, {Chunk: 2}})
	must(t, s.Dispatched(ctx, task.ID, []uint64{11, 12, 13}), "dispatched")
	must(t, s.Republished(ctx, task.ID, 1, 99), "republished")
	equal(t, "after a chunk was published again", undone(ctx, t, s, task.ID),
		[]taskstore.UndoneChunk{{Chunk: 0, Sequence: 11}, {Chunk: 1, Sequence: 99}, {Chunk: 2, Sequence: 13}})
	must(t, s.Delivered(ctx, task.ID, 0, nil, true), "done")
	must(t, s.Delivered(ctx, task.ID, 2, []int{512}, false), "delivered")
	equal(t, "after one was done", undone(ctx, t, s, task.ID), []taskstore.UndoneChunk{{Chunk: 1, Sequence: 99}, {Chunk: 2, Sequence: 13}})
}

func undoneBegun(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, Draft(300))
	b := begin(ctx, t, s, task.ID, 1)
	begin(ctx, t, s, task.ID, 1)
	chunks := undone(ctx, t, s, task.ID)
	if len(chunks) != 2 || !chunks[0].Begun.IsZero() || !chunks[1].Begun.Equal(b.FirstBegun) {
		t.Errorf("undone chunks are %+v; the second was begun at %v", chunks, b.FirstBegun)
	}
}

func leaseChecks() []Check {
	return []Check{
		{Name: "a lease has one holder", Fn: leaseHasOneHolder},
		{Name: "one of many gets a lease", Fn: leaseRace, Heavy: true},
		{Name: "a lease ends by itself", Fn: leaseEnds},
		{Name: "a renewed lease lasts", Fn: leaseRenewed, Needs: Needs{Advance: true}},
		{Name: "a lease is over when the clock steps back", Fn: leaseAfterStepBack, Needs: Needs{Advance: true}},
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
	must(t, s.Release(ctx, "free", "a"), "release of a lease that is not held")
	equal(t, "second holder after the first's release", lease(ctx, t, s, "sweep/1", "b", time.Minute), true)
}

func leaseRace(ctx context.Context, t T, s Subject) {
	for round := range s.rounds(10, 100) {
		var holders atomic.Int32
		together(20, func(i int) {
			held, err := s.Lease(ctx, fmt.Sprintf("sweep/%d", round), string(rune('a'+i)), time.Minute)
			if err != nil {
				t.Errorf("lease: %v", err)
			}
			if held {
				holders.Add(1)
			}
		})
		if !equal(t, "holders", int(holders.Load()), 1) {
			return
		}
	}
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

// leaseAfterStepBack checks that the lease of a dead holder ends although the clock
// stepped back.
func leaseAfterStepBack(ctx context.Context, t T, s Subject) {
	equal(t, "first holder", lease(ctx, t, s, "sweep", "a", time.Minute), true)
	s.Advance(-time.Hour)
	equal(t, "second holder after the step", lease(ctx, t, s, "sweep", "b", time.Minute), true)
	equal(t, "first holder after the step", lease(ctx, t, s, "sweep", "a", time.Minute), false)
	s.Advance(taskstore.MaxLease + time.Second)
	equal(t, "first holder after the longest lease", lease(ctx, t, s, "sweep", "a", 24*time.Hour), true)
	s.Advance(taskstore.MaxLease + time.Second)
	equal(t, "second holder after the longest lease", lease(ctx, t, s, "sweep", "b", time.Minute), true)
}
