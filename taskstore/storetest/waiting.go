package storetest

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func waitingChecks() []Check {
	return []Check{
		{Name: "a unit without an agent waits and gives its place back", Fn: awayWaits},
		{Name: "a unit with delivered items does not wait", Fn: deliveredDoesNotWait},
		{Name: "a unit whose host returned is released again within the window", Fn: returnedReleased},
		{Name: "a waiting unit that was sent keeps its first begin", Fn: sentKeepsBegin},
		{Name: "waiting units do not delay a stage and settle a task", Fn: waitingSettles},
		{Name: "a waiting unit expires and is no failure", Fn: waitingExpires},
		{Name: "a cancel ends waiting units that were never sent", Fn: cancelEndsWaiting},
		{Name: "maintenance windows and pauses keep waiting units waiting", Fn: closedKeepsWaiting},
	}
}

// queuedDraft is [rolloutDraft] with units that wait for their hosts.
func queuedDraft(window int, chunks ...int) taskstore.Draft {
	d := rolloutDraft(window, procfleet.AnyFailures, chunks...)
	d.Rollout.Queue = time.Hour
	return d
}

// away lets items wait, and returns the progress of the rollout.
func away(ctx context.Context, t T, s Subject, id procfleet.TaskID, chunk int, sent bool, items ...int) procfleet.Rollout {
	t.Helper()
	must(t, s.Away(ctx, id, chunk, items, sent), "away")
	return *look(ctx, t, s, id).Rollout
}

// returned advances a rollout with units whose hosts have returned.
func returned(ctx context.Context, t T, s Subject, id procfleet.TaskID, items ...int) taskstore.Advanced {
	t.Helper()
	a, err := s.AdvanceRollout(ctx, id, taskstore.Advance{Returned: items})
	must(t, err, "advance a rollout")
	return a
}

func awayWaits(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, queuedDraft(2, 3))
	advance(ctx, t, s, task.ID)
	equal(t, "open", beginGrant(ctx, t, s, task.ID, 0, 3).Open, []int{0, 1, 2})
	if r := away(ctx, t, s, task.ID, 0, false, 1); r.Active != 1 || r.Waiting != 1 || r.Failed != 0 {
		t.Errorf("active %d, waiting %d, failed %d", r.Active, r.Waiting, r.Failed)
	}
	equal(t, "waiting after a repeat", away(ctx, t, s, task.ID, 0, false, 1, 2).Waiting, 1)
	equal(t, "waiting units that were not released", away(ctx, t, s, task.ID, 1, false, 3, 4, 99, -1).Waiting, 1)
	equal(t, "open", begin(ctx, t, s, task.ID, 0).Open, []int{0})
	equal(t, "counts", look(ctx, t, s, task.ID).Counts[procfleet.StatePending], 13)
	rows, err := s.Chunk(ctx, task.ID, 0)
	must(t, err, "read a chunk")
	equal(t, "state", rows[1].State, procfleet.StatePending)

	a, err := s.AdvanceRollout(ctx, task.ID, taskstore.Advance{All: true})
	must(t, err, "advance")
	equal(t, "released in its place", released(a), [][3]int{{1, 0, 1}})
	type counts struct{ from, upto, pending, waiting int }
	var got []counts
	for _, g := range a.Items {
		if g.Chunk == 0 {
			got = append(got, counts{g.From, g.Grant.Upto, g.Pending, g.Waiting})
		}
	}
	equal(t, "grants", got, []counts{{0, 1, 1, 0}, {1, 3, 0, 2}})

	plain := create(ctx, t, s, rolloutDraft(2, 0, 3))
	advance(ctx, t, s, plain.ID)
	equal(t, "waiting without a queue", away(ctx, t, s, plain.ID, 0, false, 0).Waiting, 0)
}

func deliveredDoesNotWait(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, queuedDraft(2, 3))
	advance(ctx, t, s, task.ID)
	beginGrant(ctx, t, s, task.ID, 0, 3)
	must(t, s.Delivered(ctx, task.ID, 0, []int{1}, false), "delivered")
	r := away(ctx, t, s, task.ID, 0, false, 0, 2)
	equal(t, "active and waiting", [2]int{r.Active, r.Waiting}, [2]int{1, 1})
	equal(t, "open", begin(ctx, t, s, task.ID, 0).Open, []int{1, 2})
}

func returnedReleased(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, queuedDraft(3, 3))
	advance(ctx, t, s, task.ID)
	first := beginGrant(ctx, t, s, task.ID, 0, 3).FirstBegun
	away(ctx, t, s, task.ID, 0, false, 0, 1)
	equal(t, "released without a return", released(advance(ctx, t, s, task.ID)), [][3]int{{1, 1, 5}})
	equal(t, "released without a place", released(returned(ctx, t, s, task.ID, 0, 1)), none)
	record(ctx, t, s, task.ID, succeeded(3)...)
	a := returned(ctx, t, s, task.ID, 1, 2, 4) // items 2 and 4 begin no waiting unit
	equal(t, "released again", released(a), [][3]int{{0, 1, 3}})
	equal(t, "active and waiting", [2]int{a.Task.Rollout.Active, a.Task.Rollout.Waiting}, [2]int{3, 1})
	g := a.Items[0].Grant
	equal(t, "time until the deadline", g.Deadline.Sub(g.At), time.Minute)
	b := beginGrant(ctx, t, s, task.ID, 0, 3)
	equal(t, "open", b.Open, []int{1, 2})
	if !b.FirstBegun.Equal(b.Now) || b.FirstBegun.Before(first) {
		t.Errorf("a unit that was never sent began at %v, now %v", b.FirstBegun, b.Now)
	}
	equal(t, "completed", record(ctx, t, s, task.ID, succeeded(1, 2)...).UnitsEnded, true)
	equal(t, "released", released(returned(ctx, t, s, task.ID, 0)), [][3]int{{0, 0, 1}})
}

func sentKeepsBegin(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, queuedDraft(9, 3))
	advance(ctx, t, s, task.ID)
	first := beginGrant(ctx, t, s, task.ID, 0, 3).FirstBegun
	away(ctx, t, s, task.ID, 0, true, 0)
	away(ctx, t, s, task.ID, 0, false, 1)
	a := returned(ctx, t, s, task.ID, 0, 1)
	equal(t, "released again", released(a), [][3]int{{0, 0, 1}, {0, 1, 3}})
	equal(t, "first begin of what was sent", beginGrant(ctx, t, s, task.ID, 0, 1).FirstBegun, first)
}

func waitingSettles(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, queuedDraft(9, 1, 3))
	advance(ctx, t, s, task.ID)
	begin(ctx, t, s, task.ID, 0)
	away(ctx, t, s, task.ID, 0, false, 1)
	record(ctx, t, s, task.ID, succeeded(0)...)
	a := advance(ctx, t, s, task.ID)
	equal(t, "released", released(a), [][3]int{{1, 0, 5}, {2, 0, 5}})
	record(ctx, t, s, task.ID, succeeded(3, 4, 5, 6, 7, 8, 9, 10, 11, 12)...)
	before := look(ctx, t, s, task.ID)
	settled := advance(ctx, t, s, task.ID).Task
	equal(t, "seq", settled.Seq, before.Seq+1)
	noted, err := s.Transitions(ctx, task.ID, settled.Transitions-1, settled.Transitions)
	must(t, err, "read the last transition")
	equal(t, "transition", noted[0].Kind, procfleet.TransitionSettled)
	equal(t, "phase", settled.Rollout.Phase, procfleet.PhaseReleasing)
	equal(t, "released again", released(returned(ctx, t, s, task.ID, 1)), [][3]int{{0, 1, 3}})
	away(ctx, t, s, task.ID, 0, false, 1)
	equal(t, "seq after another absence", advance(ctx, t, s, task.ID).Task.Seq, settled.Seq)
	returned(ctx, t, s, task.ID, 1)
	equal(t, "completed", record(ctx, t, s, task.ID, succeeded(1, 2)...).Completed, true)
}

func waitingExpires(ctx context.Context, t T, s Subject) {
	d := queuedDraft(9, 3)
	d.Rollout.Failures = 0
	task := create(ctx, t, s, d)
	advance(ctx, t, s, task.ID)
	away(ctx, t, s, task.ID, 0, false, 1)
	expired := serverResult(1, procfleet.ReasonUnreachable)
	expired.Refusal = procfleet.RefusalExpired
	equal(t, "recorded", record(ctx, t, s, task.ID, expired), taskstore.Recorded{Known: true, Applied: 1})
	equal(t, "still waiting", look(ctx, t, s, task.ID).Rollout.Waiting, 1)
	expired.Item = 2
	equal(t, "recorded", record(ctx, t, s, task.ID, expired), taskstore.Recorded{Known: true, Applied: 1, UnitsEnded: true})
	got := look(ctx, t, s, task.ID)
	equal(t, "waiting, active and failed", [3]int{got.Rollout.Waiting, got.Rollout.Active, got.Rollout.Failed}, [3]int{0, 8, 0})
	equal(t, "unreachable", got.Counts[procfleet.StateUnreachable], 2)
	page, _, err := s.Results(ctx, task.ID, taskstore.ResultQuery{State: procfleet.StateUnreachable, Limit: 9})
	must(t, err, "list results")
	for _, it := range page {
		equal(t, "refusal", it.Result.Refusal, procfleet.RefusalExpired)
	}
	late := record(ctx, t, s, task.ID, succeeded(1)...)
	equal(t, "a late result", late.Applied, 1)
}

func cancelEndsWaiting(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, queuedDraft(9, 3))
	advance(ctx, t, s, task.ID)
	begin(ctx, t, s, task.ID, 0)
	beginGrant(ctx, t, s, task.ID, 1, 5)
	away(ctx, t, s, task.ID, 1, false, 3)
	away(ctx, t, s, task.ID, 1, true, 4)
	must(t, s.Delivered(ctx, task.ID, 1, []int{5}, false), "delivered")
	_, err := s.CancelItems(ctx, task.ID, []taskstore.ChunkItems{{Chunk: 1, Items: []int{0, 1, 2}}}, procfleet.CancelDrain, "", taskstore.AnySeq)
	must(t, err, "cancel items")
	canceled, err := s.ItemCancels(ctx, task.ID, 1)
	must(t, err, "read the cancels")
	equal(t, "open", canceled.Open, []int{0, 1, 2, 3, 4})
	equal(t, "never sent", canceled.Unsent, []int{0})
	got, err := s.Cancel(ctx, task.ID, procfleet.CancelDrain, "", taskstore.AnySeq)
	must(t, err, "cancel")
	equal(t, "canceled at once", got.Counts[procfleet.StateCancelled], 1)
	equal(t, "waiting", got.Rollout.Waiting, 0)
	equal(t, "open", begin(ctx, t, s, task.ID, 1).Open, []int{1, 2, 3, 4})
	equal(t, "waiting after a cancel", away(ctx, t, s, task.ID, 1, false, 4).Waiting, 0)
	rows, err := s.Chunk(ctx, task.ID, 1)
	must(t, err, "read a chunk")
	equal(t, "state", rows[0].State, procfleet.StateCancelled)
}

func closedKeepsWaiting(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, queuedDraft(9, 3))
	advance(ctx, t, s, task.ID)
	away(ctx, t, s, task.ID, 0, false, 0)
	a, err := s.AdvanceRollout(ctx, task.ID, taskstore.Advance{Closed: "night", Returned: []int{0}})
	must(t, err, "advance")
	equal(t, "released outside of the windows", released(a), none)
	_, err = s.Pause(ctx, task.ID, "", taskstore.AnySeq)
	must(t, err, "pause")
	equal(t, "released while it is paused", released(returned(ctx, t, s, task.ID, 0)), none)
	_, err = s.Resume(ctx, task.ID, taskstore.AnySeq)
	must(t, err, "resume")
	equal(t, "released", released(returned(ctx, t, s, task.ID, 0)), [][3]int{{0, 0, 1}})
}

// unitAt returns the first item of the unit of an item of [rolloutDraft], and its chunk, as indexes in
// the task, and the number of its items.
func unitAt(item int) (chunk, first, n int) {
	for k, units := range rolloutUnits {
		for _, n := range units {
			if item < first+n {
				return k, first, n
			}
			first += n
		}
	}
	return 0, 0, 0
}

// leave lets the unit of a random item wait, if it may.
func (w *rolloutWatch) leave(ctx context.Context, t T, s Subject, random *rand.Rand) {
	t.Helper()
	chunk, first, n := unitAt(random.IntN(w.task.Items))
	rows, err := s.Chunk(ctx, w.task.ID, chunk)
	must(t, err, "read a chunk")
	before := look(ctx, t, s, w.task.ID)
	at := first - rows[0].Index
	open := func(it procfleet.ItemResult) bool { return !it.State.Final() }
	if w.plan.Queue > 0 && !before.State.Done() && at < w.granted[chunk] && slices.ContainsFunc(rows[at:at+n], open) {
		w.waiting[first] = true
	}
	items := make([]int, n)
	for i := range items {
		items[i] = first + i
	}
	must(t, s.Away(ctx, w.task.ID, chunk, items, random.IntN(2) == 0), "away")
}

// returned checks units that were released again.
func (w *rolloutWatch) returned(t T, g taskstore.GrantedItems, o taskstore.Advance) {
	t.Helper()
	for item := g.First; item < g.First+g.Grant.Upto-g.From; {
		_, first, n := unitAt(item)
		if first != item || !w.waiting[item] || !slices.Contains(o.Returned, item) {
			t.Errorf("released unit %d again, which did not wait or return", first)
		}
		delete(w.waiting, first)
		item += n
	}
}
