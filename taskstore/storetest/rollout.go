package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

func rolloutChecks() []Check {
	return []Check{
		{Name: "a rollout releases no more units than its window", Fn: windowBounds},
		{Name: "an ended unit makes room for the next", Fn: endedUnitMakesRoom},
		{Name: "a unit ends with the last of its items", Fn: unitEndsWithLastItem},
		{Name: "items that are not released are not delivered", Fn: unreleasedNotBegun},
		{Name: "a zone has no more active units than its window", Fn: zoneBounds},
		{Name: "only so many zones have active units", Fn: zonesAtOnce},
		{Name: "the failure that exceeds the budget stops a rollout", Fn: budgetStops},
		{Name: "a superseded host is no failure of a rollout", Fn: supersededIsNoFailure},
		{Name: "a late success does not resume a rollout", Fn: lateSuccessResumesNothing},
		{Name: "a stage begins when the stage before it has ended", Fn: stagesFollow},
		{Name: "a gate waits for an approval of its stage", Fn: gateWaits},
		{Name: "an automatic gate waits for its verdict", Fn: gateIsJudged},
		{Name: "a stage bakes before the next begins", Fn: stageBakes},
		{Name: "a rollout without progress is held", Fn: stalledIsHeld},
		{Name: "maintenance windows hold a rollout until they permit releases", Fn: closedHolds},
		{Name: "failures during a hold stop a rollout when it ends", Fn: failuresDuringHold},
		{Name: "a paused rollout releases nothing and keeps its deadlines", Fn: pausedReleasesNothing},
		{Name: "a rollout releases nothing after its deadline", Fn: overdueReleasesNothing},
		{Name: "a cancel ends what a rollout has not released", Fn: cancelEndsUnreleased},
		{Name: "grants with open items are listed with their deadlines", Fn: openGrantsListed},
		{Name: "previous specs are kept as they were first stored", Fn: previousKept},
		{Name: "a task has one undo", Fn: undoLinked},
		{Name: "in any order of calls a rollout keeps its limits", Fn: rolloutKeepsLimits, Heavy: true},
	}
}

// rolloutUnits are the numbers of items of the units of each chunk of [rolloutDraft].
var rolloutUnits = [][]int{{1, 2}, {1, 1, 3}, {2, 1, 1, 1}}

// rolloutDraft is a draft of nine units in three chunks; a stage ends with each of chunks.
func rolloutDraft(window, failures int, chunks ...int) taskstore.Draft {
	d := Draft(0)
	d.Rollout = &procfleet.RolloutPlan{
		Window: window, Failures: failures, UnitTimeout: time.Minute,
		Count: []procfleet.State{procfleet.StateFailed, procfleet.StateTimedOut, procfleet.StateUnreachable},
	}
	first, unit := 0, 0
	for _, units := range rolloutUnits {
		var c procfleet.Chunk
		for _, n := range units {
			of := chunk(unit, 1)
			c.Specs = of.Specs
			c.Items = append(c.Items, slices.Repeat(of.Items, n)...)
			unit++
		}
		for i := range c.Items {
			c.Items[i].Spec = 0
		}
		c.Cloud, c.First = 3, first
		first += len(c.Items)
		d.Chunks = append(d.Chunks, c)
	}
	begin := 0
	for _, end := range chunks {
		units := 0
		for _, c := range rolloutUnits[begin:end] {
			units += len(c)
		}
		d.Rollout.Stages = append(d.Rollout.Stages, procfleet.RolloutStage{Units: units, Chunks: end})
		begin = end
	}
	return d
}

func advance(ctx context.Context, t T, s Subject, id procfleet.TaskID) taskstore.Advanced {
	t.Helper()
	a, err := s.AdvanceRollout(ctx, id, taskstore.Advance{})
	must(t, err, "advance a rollout")
	if a.Task.Rollout == nil {
		t.Fatalf("the advanced task has no rollout")
	}
	return a
}

// none is what [released] returns for no new grant.
var none [][3]int

// released returns the chunk, the first item and the item after the last of each new grant.
func released(a taskstore.Advanced) [][3]int {
	var list [][3]int
	for _, g := range a.Items {
		if g.New {
			list = append(list, [3]int{g.Chunk, g.From, g.Grant.Upto})
		}
	}
	return list
}

func windowBounds(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(3, 0, 3))
	if r := task.Rollout; r == nil || r.Window != 3 || r.Released != 0 || r.Phase != procfleet.PhaseReleasing {
		t.Fatalf("a new rollout is %+v", r)
	}
	a := advance(ctx, t, s, task.ID)
	equal(t, "released", released(a), [][3]int{{0, 0, 3}, {1, 0, 1}})
	equal(t, "pending items of the first grant", a.Items[0].Pending, 3)
	if r := a.Task.Rollout; r.Released != 3 || r.Active != 3 {
		t.Errorf("%d units released, %d active", r.Released, r.Active)
	}
	equal(t, "released again", released(advance(ctx, t, s, task.ID)), none)
	equal(t, "rollout read later", look(ctx, t, s, task.ID).Rollout, a.Task.Rollout)
	plain := create(ctx, t, s, Draft(1))
	if _, err := s.AdvanceRollout(ctx, plain.ID, taskstore.Advance{}); !errors.Is(err, taskstore.ErrNotFound) {
		t.Errorf("a task without a rollout advances: %v", err)
	}
}

// zonedDraft is [rolloutDraft] with one stage, whose chunks are in zones.
func zonedDraft(window int, limits procfleet.ZoneLimits, zones ...int) taskstore.Draft {
	d := rolloutDraft(window, 0, 3)
	d.Rollout.Zones = limits
	for k, zone := range zones {
		d.Chunks[k].Zone = zone
	}
	return d
}

func zoneBounds(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, zonedDraft(5, procfleet.ZoneLimits{Window: 2}, 1, 1, 2))
	equal(t, "released", released(advance(ctx, t, s, task.ID)), [][3]int{{0, 0, 3}, {2, 0, 3}})
	record(ctx, t, s, task.ID, succeeded(8, 9)...) // the first unit of zone 2
	equal(t, "released in zone 2", released(advance(ctx, t, s, task.ID)), [][3]int{{2, 3, 4}})
	record(ctx, t, s, task.ID, succeeded(0, 1, 2)...)
	a := advance(ctx, t, s, task.ID)
	equal(t, "released in zone 1", released(a), [][3]int{{1, 0, 2}})
	equal(t, "active", a.Task.Rollout.Active, 4)
	record(ctx, t, s, task.ID, succeeded(3, 4, 10, 11)...)
	equal(t, "released in both", released(advance(ctx, t, s, task.ID)), [][3]int{{1, 2, 5}, {2, 4, 5}})
	plain := create(ctx, t, s, zonedDraft(9, procfleet.ZoneLimits{Window: 1}, 0, 0, 1))
	equal(t, "released without a zone", released(advance(ctx, t, s, plain.ID)), [][3]int{{0, 0, 3}, {1, 0, 5}, {2, 0, 2}})
}

func zonesAtOnce(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, zonedDraft(4, procfleet.ZoneLimits{AtOnce: 1}, 1, 2, 1))
	equal(t, "released", released(advance(ctx, t, s, task.ID)), [][3]int{{0, 0, 3}, {2, 0, 3}})
	record(ctx, t, s, task.ID, succeeded(0, 1, 2)...)
	equal(t, "released", released(advance(ctx, t, s, task.ID)), [][3]int{{2, 3, 5}})
	record(ctx, t, s, task.ID, succeeded(8, 9, 10, 11)...)
	equal(t, "released while zone 1 is active", released(advance(ctx, t, s, task.ID)), none)
	record(ctx, t, s, task.ID, succeeded(12)...)
	a := advance(ctx, t, s, task.ID)
	equal(t, "released in zone 2", released(a), [][3]int{{1, 0, 5}})
	record(ctx, t, s, task.ID, succeeded(3, 4, 5, 6, 7)...)
	equal(t, "state", look(ctx, t, s, task.ID).State, procfleet.TaskFinished)
}

func endedUnitMakesRoom(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(2, 0, 3))
	advance(ctx, t, s, task.ID)
	got := record(ctx, t, s, task.ID, succeeded(0)...)
	equal(t, "recorded", got, taskstore.Recorded{Known: true, Applied: 1, UnitsEnded: true})
	equal(t, "released", released(advance(ctx, t, s, task.ID)), [][3]int{{1, 0, 1}})
	got = record(ctx, t, s, task.ID, succeeded(0)...)
	equal(t, "recorded again", got, taskstore.Recorded{Known: true})
	equal(t, "released after a repeat", released(advance(ctx, t, s, task.ID)), none)
	record(ctx, t, s, task.ID, succeeded(1, 2, 3)...)
	a := advance(ctx, t, s, task.ID)
	equal(t, "released", released(a), [][3]int{{1, 1, 5}})
	equal(t, "active", a.Task.Rollout.Active, 2)
}

func unitEndsWithLastItem(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(2, 0, 3))
	advance(ctx, t, s, task.ID)
	equal(t, "recorded", record(ctx, t, s, task.ID, succeeded(1)...), taskstore.Recorded{Known: true, Applied: 1})
	equal(t, "released", released(advance(ctx, t, s, task.ID)), none)
	equal(t, "recorded", record(ctx, t, s, task.ID, succeeded(2)...), taskstore.Recorded{Known: true, Applied: 1, UnitsEnded: true})
	equal(t, "released", released(advance(ctx, t, s, task.ID)), [][3]int{{1, 0, 1}})
}

func unreleasedNotBegun(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(1, 0, 3))
	equal(t, "gate before a release", begin(ctx, t, s, task.ID, 0).Gate, taskstore.GateFinished)
	a := advance(ctx, t, s, task.ID)
	b := beginGrant(ctx, t, s, task.ID, 0, 1)
	equal(t, "gate", b.Gate, taskstore.GateOpen)
	equal(t, "open", b.Open, []int{0})
	equal(t, "first begin", b.FirstBegun, b.Now)
	equal(t, "first begin, again", beginGrant(ctx, t, s, task.ID, 0, 1).FirstBegun, b.Now)
	equal(t, "gate of a grant that there is not", beginGrant(ctx, t, s, task.ID, 0, 2).Gate, taskstore.GateFinished)
	equal(t, "items of the chunk", len(b.Chunk.Items), 3)
	equal(t, "deadline", b.Deadline, a.Items[0].Grant.Deadline)
	equal(t, "gate of another chunk", begin(ctx, t, s, task.ID, 1).Gate, taskstore.GateFinished)
	must(t, s.Delivered(ctx, task.ID, 0, []int{0}, true), "delivered")
	record(ctx, t, s, task.ID, succeeded(0)...)
	equal(t, "gate after the end of the unit", begin(ctx, t, s, task.ID, 0).Gate, taskstore.GateFinished)
	advance(ctx, t, s, task.ID)
	next := beginGrant(ctx, t, s, task.ID, 0, 3)
	equal(t, "open of the next unit", next.Open, []int{1, 2})
	equal(t, "first begin of the next unit", next.FirstBegun, next.Now)
	must(t, s.Delivered(ctx, task.ID, 0, []int{2}, true), "delivered")
	next = beginGrant(ctx, t, s, task.ID, 0, 3)
	equal(t, "open", next.Open, []int{1, 2})
	equal(t, "delivered", next.Delivered, []int{2})
}

// beginGrant begins the items of the grant up to upto.
func beginGrant(ctx context.Context, t T, s taskstore.Store, id procfleet.TaskID, chunk, upto int) taskstore.Begun {
	t.Helper()
	b, err := s.Begin(ctx, id, chunk, upto)
	must(t, err, "begin a grant")
	return b
}

func failed(items ...int) []procfleet.Result {
	var rs []procfleet.Result
	for _, i := range items {
		rs = append(rs, agentResult(i, procfleet.ReasonCommandFailed))
	}
	return rs
}

func budgetStops(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(2, 1, 3))
	advance(ctx, t, s, task.ID)
	record(ctx, t, s, task.ID, failed(0)...)
	equal(t, "hold after a tolerated failure", look(ctx, t, s, task.ID).Rollout.Hold.Kind, procfleet.HoldKind(""))
	equal(t, "released after a tolerated failure", released(advance(ctx, t, s, task.ID)), [][3]int{{1, 0, 1}})
	record(ctx, t, s, task.ID, append(failed(1), succeeded(3)...)...)
	a := advance(ctx, t, s, task.ID)
	equal(t, "hold", a.Task.Rollout.Hold.Kind, procfleet.HoldBudget)
	equal(t, "released after the hold", released(a), none)
	if a.Task.Seq <= task.Seq || a.Task.Rollout.Failed != 2 {
		t.Errorf("seq %d, %d failed", a.Task.Seq, a.Task.Rollout.Failed)
	}
	refused, err := s.EndHold(ctx, task.ID, procfleet.HoldBudget, 1, taskstore.AnySeq)
	if !errors.Is(err, taskstore.ErrFailures) {
		t.Errorf("resumed with a budget that is used up: %v", err)
	}
	equal(t, "the task after a refusal", refused, a.Task)
	if _, err := s.EndHold(ctx, task.ID, procfleet.HoldBudget, 2, a.Task.Seq+1); !errors.Is(err, taskstore.ErrSeq) {
		t.Errorf("resumed with another seq: %v", err)
	}
	got, err := s.EndHold(ctx, task.ID, procfleet.HoldApproval, 0, taskstore.AnySeq)
	must(t, err, "end of a hold that is not set")
	equal(t, "hold", got.Rollout.Hold.Kind, procfleet.HoldBudget)
	got, err = s.EndHold(ctx, task.ID, procfleet.HoldBudget, 2, a.Task.Seq)
	must(t, err, "end of a hold")
	equal(t, "failures after resume", got.Rollout.Failures, 2)
	equal(t, "seq after resume", got.Seq, a.Task.Seq+1)
	equal(t, "released after resume", released(advance(ctx, t, s, task.ID)), [][3]int{{1, 1, 2}})
}

func supersededIsNoFailure(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(2, 0, 3))
	advance(ctx, t, s, task.ID)
	superseded := agentResult(0, procfleet.ReasonRefused)
	superseded.Refusal = procfleet.RefusalSuperseded
	record(ctx, t, s, task.ID, superseded)
	got := look(ctx, t, s, task.ID)
	equal(t, "hold after a superseded host", got.Rollout.Hold.Kind, procfleet.HoldKind(""))
	equal(t, "failed hosts", got.Rollout.Failed, 0)
	equal(t, "failed items", got.Counts[procfleet.StateFailed], 1)
	for _, it := range pages(ctx, t, s, task.ID, taskstore.ResultQuery{State: procfleet.StateFailed, Limit: 10}) {
		equal(t, "refusal", it.Result.Refusal, procfleet.RefusalSuperseded)
	}
	equal(t, "released after a superseded host", released(advance(ctx, t, s, task.ID)), [][3]int{{1, 0, 1}})
	refused := agentResult(1, procfleet.ReasonRefused)
	record(ctx, t, s, task.ID, refused)
	equal(t, "hold after a refusal", look(ctx, t, s, task.ID).Rollout.Hold.Kind, procfleet.HoldBudget)
}

func lateSuccessResumesNothing(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(2, 0, 3))
	advance(ctx, t, s, task.ID)
	record(ctx, t, s, task.ID, serverResult(0, procfleet.ReasonTimedOut))
	equal(t, "failed", look(ctx, t, s, task.ID).Rollout.Failed, 1)
	got := record(ctx, t, s, task.ID, succeeded(0)...)
	equal(t, "recorded", got, taskstore.Recorded{Known: true, Applied: 1})
	a := advance(ctx, t, s, task.ID)
	equal(t, "failed", a.Task.Rollout.Failed, 0)
	equal(t, "hold", a.Task.Rollout.Hold.Kind, procfleet.HoldBudget)
	equal(t, "released", released(a), none)
}

func stagesFollow(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(9, procfleet.AnyFailures, 1, 3))
	equal(t, "released", released(advance(ctx, t, s, task.ID)), [][3]int{{0, 0, 3}})
	record(ctx, t, s, task.ID, failed(0, 1)...)
	equal(t, "released before the end of the stage", released(advance(ctx, t, s, task.ID)), none)
	record(ctx, t, s, task.ID, failed(2)...)
	a := advance(ctx, t, s, task.ID)
	equal(t, "released", released(a), [][3]int{{1, 0, 5}, {2, 0, 5}})
	equal(t, "stage", a.Task.Rollout.Stage, 1)
	equal(t, "seq", a.Task.Seq, 1)
	got := record(ctx, t, s, task.ID, succeeded(3, 4, 5, 6, 7, 8, 9, 10, 11, 12)...)
	equal(t, "completed", got.Completed, true)
	equal(t, "active at the end", look(ctx, t, s, task.ID).Rollout.Active, 0)
}

func gateWaits(ctx context.Context, t T, s Subject) {
	d := rolloutDraft(9, 0, 1, 3)
	d.Rollout.Approval = true
	task := create(ctx, t, s, d)
	advance(ctx, t, s, task.ID)
	record(ctx, t, s, task.ID, succeeded(0, 1, 2)...)
	a := advance(ctx, t, s, task.ID)
	equal(t, "released before the approval", released(a), none)
	equal(t, "hold", a.Task.Rollout.Hold.Kind, procfleet.HoldApproval)
	equal(t, "phase", a.Task.Rollout.Phase, procfleet.PhaseGate)
	got, err := s.EndHold(ctx, task.ID, procfleet.HoldApproval, 0, a.Task.Seq)
	must(t, err, "approve")
	equal(t, "stage after the approval", got.Rollout.Stage, 1)
	equal(t, "seq after the approval", got.Seq, a.Task.Seq+1)
	equal(t, "released", released(advance(ctx, t, s, task.ID)), [][3]int{{1, 0, 5}, {2, 0, 5}})
	got, err = s.EndHold(ctx, task.ID, procfleet.HoldApproval, 0, taskstore.AnySeq)
	must(t, err, "approve again")
	equal(t, "stage after a second approval", got.Rollout.Stage, 1)
}

func judge(ctx context.Context, t T, s Subject, id procfleet.TaskID, stage int, hold procfleet.Hold) procfleet.Task {
	t.Helper()
	task, err := s.JudgeStage(ctx, id, stage, hold)
	must(t, err, "judge a stage")
	return task
}

func gateIsJudged(ctx context.Context, t T, s Subject) {
	atGate := func(approval bool) procfleet.Task {
		d := rolloutDraft(9, 0, 1, 3)
		d.Rollout.Auto, d.Rollout.Approval = true, approval
		task := create(ctx, t, s, d)
		judge(ctx, t, s, task.ID, 0, procfleet.Hold{}) // too early
		advance(ctx, t, s, task.ID)
		record(ctx, t, s, task.ID, succeeded(0, 1, 2)...)
		a := advance(ctx, t, s, task.ID)
		equal(t, "released before the verdict", released(a), none)
		equal(t, "phase", a.Task.Rollout.Phase, procfleet.PhaseGate)
		equal(t, "hold before the verdict", a.Task.Rollout.Hold.Kind, procfleet.HoldKind(""))
		return a.Task
	}
	unhealthy := procfleet.Hold{Kind: procfleet.HoldUnhealthy, Reason: "web of 0:10.0.0.1 \"does not\" run"}

	held := atGate(true)
	equal(t, "hold of another stage", judge(ctx, t, s, held.ID, 1, unhealthy).Rollout.Hold.Kind, procfleet.HoldKind(""))
	got := judge(ctx, t, s, held.ID, 0, unhealthy)
	equal(t, "hold", []string{string(got.Rollout.Hold.Kind), got.Rollout.Hold.Reason}, []string{string(unhealthy.Kind), unhealthy.Reason})
	equal(t, "seq after the verdict", got.Seq, held.Seq+1)
	equal(t, "second verdict", judge(ctx, t, s, held.ID, 0, procfleet.Hold{}), got)
	got, err := s.EndHold(ctx, held.ID, procfleet.HoldUnhealthy, 0, got.Seq)
	must(t, err, "end the hold")
	equal(t, "hold after its end", got.Rollout.Hold, procfleet.Hold{})
	equal(t, "gate after the hold", advance(ctx, t, s, held.ID).Task.Rollout.Hold.Kind, procfleet.HoldApproval)

	passed := atGate(false)
	got = judge(ctx, t, s, passed.ID, 0, procfleet.Hold{})
	equal(t, "seq after a stage has passed", got.Seq, passed.Seq)
	a := advance(ctx, t, s, passed.ID)
	equal(t, "released", released(a), [][3]int{{1, 0, 5}, {2, 0, 5}})
	equal(t, "stage", a.Task.Rollout.Stage, 1)
	if _, err := s.JudgeStage(ctx, create(ctx, t, s, Draft(1)).ID, 0, unhealthy); !errors.Is(err, taskstore.ErrNotFound) {
		t.Errorf("a stage of a task without a rollout: %v", err)
	}
}

// span returns d, or a short time if the harness cannot move the store's clock.
func (s Subject) span(d time.Duration) time.Duration {
	if s.Advance == nil {
		return 100 * time.Millisecond
	}
	return d
}

func stageBakes(ctx context.Context, t T, s Subject) {
	d := rolloutDraft(9, 0, 1, 3)
	d.Rollout.Bake = s.span(5 * time.Minute)
	task := create(ctx, t, s, d)
	advance(ctx, t, s, task.ID)
	record(ctx, t, s, task.ID, succeeded(0, 1, 2)...)
	first := advance(ctx, t, s, task.ID)
	if s.Advance != nil {
		s.Advance(4 * time.Minute)
		equal(t, "released while it bakes", released(advance(ctx, t, s, task.ID)), none)
	}
	var second taskstore.Advanced
	s.pass(ctx, t, d.Rollout.Bake, "the next stage begins", func() bool {
		second = advance(ctx, t, s, task.ID)
		return len(released(second)) > 0
	})
	if baked := second.Task.Rollout.Since.Sub(first.Task.Rollout.Since); baked < d.Rollout.Bake {
		t.Errorf("the next stage began after %v of %v", baked, d.Rollout.Bake)
	}
	equal(t, "released", released(second), [][3]int{{1, 0, 5}, {2, 0, 5}})
}

func stalledIsHeld(ctx context.Context, t T, s Subject) {
	d := rolloutDraft(1, 0, 3)
	d.Rollout.Stall = s.span(5 * time.Minute)
	task := create(ctx, t, s, d)
	held := func() bool { return advance(ctx, t, s, task.ID).Task.Rollout.Hold.Kind == procfleet.HoldStalled }
	advance(ctx, t, s, task.ID)
	if s.Advance != nil {
		s.Advance(4 * time.Minute)
		record(ctx, t, s, task.ID, succeeded(0)...)
		advance(ctx, t, s, task.ID)
		s.Advance(4 * time.Minute)
		equal(t, "held soon after progress", held(), false)
	}
	s.pass(ctx, t, d.Rollout.Stall, "the rollout is held", held)
	got, err := s.EndHold(ctx, task.ID, procfleet.HoldStalled, 0, taskstore.AnySeq)
	must(t, err, "resume")
	equal(t, "hold after resume", got.Rollout.Hold.Kind, procfleet.HoldKind(""))
	if s.Advance != nil {
		equal(t, "held at once again", held(), false)
	}
}

func pausedReleasesNothing(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(1, 0, 3))
	advance(ctx, t, s, task.ID)
	pause(ctx, t, s, task.ID, "")
	record(ctx, t, s, task.ID, succeeded(0)...)
	equal(t, "released while paused", released(advance(ctx, t, s, task.ID)), none)
	resume(ctx, t, s, task.ID)
	equal(t, "released", released(advance(ctx, t, s, task.ID)), [][3]int{{0, 1, 3}})
	beginGrant(ctx, t, s, task.ID, 0, 3)
	before := grants(ctx, t, s, task.ID)[0]
	held, least := pause(ctx, t, s, task.ID, ""), time.Duration(1)
	if s.Advance != nil {
		least = 10 * time.Minute
		s.Advance(least)
	}
	resumed := resume(ctx, t, s, task.ID)
	after := grants(ctx, t, s, task.ID)[0]
	if moved := after.Deadline.Sub(before.Deadline); moved < least || moved != resumed.Deadline.Sub(held.Deadline) || !after.At.Equal(before.At) || !after.Begun.Equal(before.Begun) {
		t.Errorf("a pause moves the deadline of a grant by %v, and its time by %v", moved, after.At.Sub(before.At))
	}
}

func overdueReleasesNothing(ctx context.Context, t T, s Subject) {
	d := rolloutDraft(1, 0, 3)
	d.Timeout = 2 * s.span(time.Minute)
	task := create(ctx, t, s, d)
	// On a busy machine the task may be overdue before its first release.
	for tries := 0; len(released(advance(ctx, t, s, task.ID))) == 0 && tries < 8; tries++ {
		d.Timeout *= 2
		task = create(ctx, t, s, d)
	}
	s.pass(ctx, t, d.Timeout, "the task is overdue", func() bool {
		return beginGrant(ctx, t, s, task.ID, 0, 1).Gate == taskstore.GateOverdue && !now(ctx, t, s).Before(task.Deadline)
	})
	record(ctx, t, s, task.ID, succeeded(0)...)
	equal(t, "released", released(advance(ctx, t, s, task.ID)), none)
}

func now(ctx context.Context, t T, s Subject) time.Time {
	t.Helper()
	at, err := s.Now(ctx)
	must(t, err, "read the clock")
	return at
}

func cancelEndsUnreleased(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(3, 0, 3))
	advance(ctx, t, s, task.ID)
	begin(ctx, t, s, task.ID, 0)
	must(t, s.Delivered(ctx, task.ID, 0, []int{0}, true), "delivered")
	got, err := s.Cancel(ctx, task.ID, procfleet.CancelDrain, "", taskstore.AnySeq)
	must(t, err, "cancel")
	equal(t, "canceled at once", got.Counts[procfleet.StateCancelled], 9)
	equal(t, "gate of a released unit", begin(ctx, t, s, task.ID, 1).Gate, taskstore.GateCanceled)
	equal(t, "open", begin(ctx, t, s, task.ID, 0).Open, []int{0, 1, 2})
	record(ctx, t, s, task.ID, succeeded(0)...)
	equal(t, "released", released(advance(ctx, t, s, task.ID)), none)
	equal(t, "completed", record(ctx, t, s, task.ID, succeeded(1, 2, 3)...).Completed, true)
}

// grants returns the grants with open items.
func grants(ctx context.Context, t T, s Subject, id procfleet.TaskID) []taskstore.Grant {
	t.Helper()
	a, err := s.AdvanceRollout(ctx, id, taskstore.Advance{All: true})
	must(t, err, "list the open grants")
	var list []taskstore.Grant
	for _, g := range a.Items {
		list = append(list, g.Grant)
	}
	return list
}

// advanceClosed advances a rollout at a time at which windows permit no releases.
func advanceClosed(ctx context.Context, t T, s Subject, id procfleet.TaskID, reason string) procfleet.Task {
	t.Helper()
	a, err := s.AdvanceRollout(ctx, id, taskstore.Advance{Closed: reason})
	must(t, err, "advance")
	equal(t, "released outside of the windows", released(a), none)
	return a.Task
}

func closedHolds(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(2, 0, 3))
	held := advanceClosed(ctx, t, s, task.ID, "night")
	if h := held.Rollout.Hold; h.Kind != procfleet.HoldWindow || h.Reason != "night" || h.Since.IsZero() || held.Seq != task.Seq+1 {
		t.Fatalf("the hold is %+v, seq %d after %d", h, held.Seq, task.Seq)
	}
	equal(t, "held again", advanceClosed(ctx, t, s, task.ID, "day"), held)
	a := advance(ctx, t, s, task.ID)
	equal(t, "released", released(a), [][3]int{{0, 0, 3}})
	if a.Task.Rollout.Hold != (procfleet.Hold{}) || a.Task.Seq != held.Seq+1 {
		t.Errorf("after the hold: %+v, seq %d after %d", a.Task.Rollout.Hold, a.Task.Seq, held.Seq)
	}

	all := create(ctx, t, s, rolloutDraft(9, 0, 3))
	advance(ctx, t, s, all.ID)
	equal(t, "hold without more to release", advanceClosed(ctx, t, s, all.ID, "night").Rollout.Hold, procfleet.Hold{})

	gated := rolloutDraft(9, 0, 1, 3)
	gated.Rollout.Approval = true
	stages := create(ctx, t, s, gated)
	advance(ctx, t, s, stages.ID)
	record(ctx, t, s, stages.ID, succeeded(0, 1, 2)...)
	equal(t, "at a gate", advance(ctx, t, s, stages.ID).Task.Rollout.Hold.Kind, procfleet.HoldApproval)
	equal(t, "a hold that exists", advanceClosed(ctx, t, s, stages.ID, "night").Rollout.Hold.Kind, procfleet.HoldApproval)
}

func failuresDuringHold(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(2, 0, 3))
	advance(ctx, t, s, task.ID)
	advanceClosed(ctx, t, s, task.ID, "night")
	record(ctx, t, s, task.ID, failed(0)...)
	a := advance(ctx, t, s, task.ID)
	equal(t, "released", released(a), none)
	equal(t, "hold", a.Task.Rollout.Hold.Kind, procfleet.HoldBudget)
}

func openGrantsListed(ctx context.Context, t T, s Subject) {
	task := create(ctx, t, s, rolloutDraft(2, 0, 3))
	advance(ctx, t, s, task.ID)
	record(ctx, t, s, task.ID, succeeded(0)...)
	advance(ctx, t, s, task.ID)
	begun := beginGrant(ctx, t, s, task.ID, 0, 3).FirstBegun
	must(t, s.Delivered(ctx, task.ID, 0, []int{1}, false), "delivered")
	a, err := s.AdvanceRollout(ctx, task.ID, taskstore.Advance{All: true})
	must(t, err, "advance")
	equal(t, "new", released(a), none)
	type counts struct{ chunk, from, first, upto, pending, delivered int }
	var got []counts
	for _, g := range a.Items {
		got = append(got, counts{g.Chunk, g.From, g.First, g.Grant.Upto, g.Pending, g.Delivered})
		equal(t, "time until the deadline", g.Grant.Deadline.Sub(g.Grant.At), time.Minute)
	}
	want := []counts{{0, 0, 0, 3, 1, 1}, {1, 0, 3, 1, 1, 0}}
	if !slices.Equal(got, want) || !a.Items[0].Grant.Begun.Equal(begun) || !a.Items[1].Grant.Begun.IsZero() {
		t.Errorf("open grants %v, want %v", got, want)
	}
	undone, err := s.Undone(ctx, task.ID)
	must(t, err, "undone")
	equal(t, "undone chunks", len(undone), 3)
}

// rolloutKeepsLimits makes random calls, and compares the progress of the rollout with the
// states of its items after each.
func rolloutKeepsLimits(ctx context.Context, t T, s Subject) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range s.rounds(2, 8) {
		d := rolloutDraft(1+random.IntN(4), random.IntN(3), [][]int{{3}, {1, 3}, {1, 2, 3}}[random.IntN(3)]...)
		d.Rollout.Approval = random.IntN(2) == 0
		d.Rollout.Queue = []time.Duration{0, time.Hour}[random.IntN(2)]
		w := &rolloutWatch{plan: *d.Rollout, granted: make([]int, len(d.Chunks)), waiting: map[int]bool{}}
		w.task = create(ctx, t, s, d)
		for range 60 {
			w.step(ctx, t, s, random)
			if !w.sound(ctx, t, s) {
				t.Fatalf("failing seed: %d", seed)
			}
		}
	}
}

// rolloutWatch follows one rollout.
type rolloutWatch struct {
	plan    procfleet.RolloutPlan
	task    procfleet.Task
	granted []int        // released items of each chunk
	waiting map[int]bool // units that wait, by their first item in the task
}

func (w *rolloutWatch) step(ctx context.Context, t T, s Subject, random *rand.Rand) {
	t.Helper()
	id := w.task.ID
	switch random.IntN(15) {
	case 12, 13, 14:
		w.leave(ctx, t, s, random)
	case 0:
		_, _ = s.Pause(ctx, id, "", taskstore.AnySeq) // the task may have ended
	case 1, 2:
		_, _ = s.Resume(ctx, id, taskstore.AnySeq)
	case 3:
		kind := []procfleet.HoldKind{procfleet.HoldBudget, procfleet.HoldApproval}[random.IntN(2)]
		_, _ = s.EndHold(ctx, id, kind, w.task.Rollout.Failed, taskstore.AnySeq)
	case 4, 5, 6, 7:
		o := taskstore.Advance{All: random.IntN(2) == 0}
		for i := range w.task.Items {
			if random.IntN(2) == 0 {
				o.Returned = append(o.Returned, i)
			}
		}
		w.advance(ctx, t, s, o)
	default:
		record(ctx, t, s, id, randomResults(random, []int{random.IntN(w.task.Items), random.IntN(w.task.Items)})...)
	}
}

// advance moves the rollout on, and checks that it released the next units of the stage, as many
// as it may and no more.
func (w *rolloutWatch) advance(ctx context.Context, t T, s Subject, o taskstore.Advance) {
	t.Helper()
	before := look(ctx, t, s, w.task.ID)
	a, err := s.AdvanceRollout(ctx, w.task.ID, o)
	must(t, err, "advance")
	r := a.Task.Rollout
	for _, g := range a.Items {
		if !g.New {
			continue
		}
		begin := 0
		if r.Stage > 0 {
			begin = w.plan.Stages[r.Stage-1].Chunks
		}
		switch {
		case before.Held() || before.Rollout.Hold.Kind != "" || before.State.Done():
			t.Errorf("released while it is held or over: %+v", before)
		case g.From < w.granted[g.Chunk]:
			w.returned(t, g, o)
			continue
		case g.From != w.granted[g.Chunk]:
			t.Errorf("released from item %d of chunk %d after item %d", g.From, g.Chunk, w.granted[g.Chunk])
		case g.Chunk >= w.plan.Stages[r.Stage].Chunks, len(released(a)) == 1 && g.Chunk < begin:
			t.Errorf("released chunk %d in stage %d", g.Chunk, r.Stage)
		}
		w.granted[g.Chunk] = g.Grant.Upto
	}
	if r.Active > max(w.plan.Window, before.Rollout.Active) {
		t.Errorf("%d units active, window %d", r.Active, w.plan.Window)
	}
}

// sound compares the counters of the rollout with the states of its items.
func (w *rolloutWatch) sound(ctx context.Context, t T, s Subject) bool {
	t.Helper()
	w.task = look(ctx, t, s, w.task.ID)
	var releasedUnits, active, waiting, failedUnits int
	for k, units := range rolloutUnits {
		rows, err := s.Chunk(ctx, w.task.ID, k)
		must(t, err, "read a chunk")
		at := 0
		for _, n := range units {
			open, bad := false, false
			for _, row := range rows[at : at+n] {
				open = open || !row.State.Final()
				bad = bad || slices.Contains(w.plan.Count, row.State)
			}
			if at < w.granted[k] {
				releasedUnits++
				switch {
				case open && w.waiting[rows[at].Index]:
					waiting++
				case open:
					active++
				}
			}
			if bad {
				failedUnits++
			}
			at += n
		}
	}
	r := w.task.Rollout
	return equal(t, "released, active, waiting and failed units",
		[4]int{r.Released, r.Active, r.Waiting, r.Failed}, [4]int{releasedUnits, active, waiting, failedUnits})
}
