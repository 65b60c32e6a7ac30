package storetest_test

import (
	"context"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// otherPlan creates rollouts with another plan than that of the draft.
type otherPlan struct {
	taskstore.Store
	change func(*procfleet.RolloutPlan)
}

func (s otherPlan) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	if d.Rollout != nil {
		plan := *d.Rollout
		s.change(&plan)
		d.Rollout = &plan
	}
	return s.Store.Create(ctx, d)
}

func planned(change func(*procfleet.RolloutPlan)) func(taskstore.Store) taskstore.Store {
	return func(s taskstore.Store) taskstore.Store { return otherPlan{s, change} }
}

type unitsEnded struct {
	taskstore.Store
	with func(taskstore.Recorded) bool
}

func (s unitsEnded) Record(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	recorded, err := s.Store.Record(ctx, batches)
	for i := range recorded {
		recorded[i].UnitsEnded = s.with(recorded[i])
	}
	return recorded, err
}

type beginsUnreleased struct{ taskstore.Store }

func (s beginsUnreleased) Begin(ctx context.Context, id procfleet.TaskID, chunk, upto int) (taskstore.Begun, error) {
	b, err := s.Store.Begin(ctx, id, chunk, upto)
	if b.Task.Rollout != nil {
		b.Open = nil
		for i := range b.Chunk.Items {
			b.Open = append(b.Open, i)
		}
	}
	return b, err
}

// plainRefusals drops why operations were refused.
type plainRefusals struct{ taskstore.Store }

func (s plainRefusals) Record(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	batches = slices.Clone(batches)
	for i := range batches {
		batches[i].Results = slices.Clone(batches[i].Results)
		for n := range batches[i].Results {
			batches[i].Results[n].Refusal = ""
		}
	}
	return s.Store.Record(ctx, batches)
}

type keepsLastSpecs struct {
	taskstore.Store
	kept map[[2]int]taskstore.PreviousSpecs
}

func (s keepsLastSpecs) KeepPrevious(ctx context.Context, id procfleet.TaskID, specs []taskstore.PreviousSpecs) error {
	for _, p := range specs {
		s.kept[[2]int{p.Chunk, p.From}] = p
	}
	return s.Store.KeepPrevious(ctx, id, specs)
}

func (s keepsLastSpecs) PreviousSpecs(_ context.Context, _ procfleet.TaskID, chunk int) (found []taskstore.PreviousSpecs, err error) {
	for at, p := range s.kept {
		if at[0] == chunk {
			found = append(found, p)
		}
	}
	taskstore.SortPrevious(found)
	return found, nil
}

type linksLastUndo struct{ taskstore.Store }

func (s linksLastUndo) LinkUndo(ctx context.Context, id, undo procfleet.TaskID) (procfleet.Task, error) {
	t, err := s.Store.LinkUndo(ctx, id, undo)
	t.UndoneBy = undo
	return t, err
}

type resumesAfterLateSuccess struct{ taskstore.Store }

func (s resumesAfterLateSuccess) AdvanceRollout(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error) {
	if t, err := s.Task(ctx, id); err == nil && t.Rollout != nil && t.Rollout.Failed <= t.Rollout.Failures {
		_, _ = s.EndHold(ctx, id, procfleet.HoldBudget, t.Rollout.Failures, taskstore.AnySeq)
	}
	return s.Store.AdvanceRollout(ctx, id, o)
}

type releasesPaused struct{ taskstore.Store }

func (s releasesPaused) AdvanceRollout(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error) {
	_, _ = s.Resume(ctx, id, taskstore.AnySeq)
	return s.Store.AdvanceRollout(ctx, id, o)
}

type pausesInsteadOfCancel struct{ taskstore.Store }

func (s pausesInsteadOfCancel) Cancel(ctx context.Context, id procfleet.TaskID, _ procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	return s.Pause(ctx, id, reason, seq)
}

// lateDeadline creates rollouts whose deadline is later than that of the draft.
type lateDeadline struct{ taskstore.Store }

func (s lateDeadline) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	before := d.Timeout
	if d.Rollout != nil {
		d.Timeout += time.Hour
	}
	t, created, err := s.Store.Create(ctx, d)
	t.Deadline = t.CreatedAt.Add(before)
	return t, created, err
}

type listsNewGrantsOnly struct{ taskstore.Store }

func (s listsNewGrantsOnly) AdvanceRollout(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error) {
	o.All = false
	return s.Store.AdvanceRollout(ctx, id, o)
}

type ignoresWindows struct{ taskstore.Store }

func (s ignoresWindows) AdvanceRollout(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error) {
	o.Closed = ""
	return s.Store.AdvanceRollout(ctx, id, o)
}

// forgetsFailures ends the hold of maintenance windows, and then one of the budget.
type forgetsFailures struct{ taskstore.Store }

func (s forgetsFailures) AdvanceRollout(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error) {
	was, _ := s.Task(ctx, id)
	a, err := s.Store.AdvanceRollout(ctx, id, o)
	if err == nil && was.Rollout != nil && was.Rollout.Hold.Kind == procfleet.HoldWindow && a.Task.Rollout.Hold.Kind == procfleet.HoldBudget {
		_, _ = s.EndHold(ctx, id, procfleet.HoldBudget, procfleet.AnyFailures, taskstore.AnySeq)
		return s.Store.AdvanceRollout(ctx, id, o)
	}
	return a, err
}

// awayAs changes whether the items of units that wait were sent.
type awayAs struct {
	taskstore.Store
	sent bool
}

func (s awayAs) Away(ctx context.Context, id procfleet.TaskID, chunk int, items []int, _ bool) error {
	return s.Store.Away(ctx, id, chunk, items, s.sent)
}

// forgetsDelivered does not record what agents have accepted.
type forgetsDelivered struct{ taskstore.Store }

func (forgetsDelivered) Delivered(context.Context, procfleet.TaskID, int, []int, bool) error {
	return nil
}

// advancesAs changes the options of rollouts.
type advancesAs struct {
	taskstore.Store
	change func(*taskstore.Advance)
}

func (s advancesAs) AdvanceRollout(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error) {
	s.change(&o)
	return s.Store.AdvanceRollout(ctx, id, o)
}

func rolloutDefects() map[string]defect {
	return map[string]defect{
		"its window is one too wide": {
			planned(func(p *procfleet.RolloutPlan) { p.Window++ }),
			[]string{"a rollout releases no more units than its window", "in any order of calls a rollout keeps its limits"},
		},
		"it does not report ended units": {
			func(s taskstore.Store) taskstore.Store {
				return unitsEnded{s, func(taskstore.Recorded) bool { return false }}
			},
			[]string{"an ended unit makes room for the next"},
		},
		"a unit ends with any of its items": {
			func(s taskstore.Store) taskstore.Store {
				return unitsEnded{s, func(r taskstore.Recorded) bool { return r.Applied > 0 }}
			},
			[]string{"a unit ends with the last of its items"},
		},
		"it begins what is not released": {
			func(s taskstore.Store) taskstore.Store { return beginsUnreleased{s} },
			[]string{"items that are not released are not delivered"},
		},
		"it keeps the last previous specs": {
			func(s taskstore.Store) taskstore.Store {
				return keepsLastSpecs{s, map[[2]int]taskstore.PreviousSpecs{}}
			},
			[]string{"previous specs are kept as they were first stored"},
		},
		"a task has the last undo": {
			func(s taskstore.Store) taskstore.Store { return linksLastUndo{s} },
			[]string{"a task has one undo"},
		},
		"it knows no windows of zones": {
			planned(func(p *procfleet.RolloutPlan) { p.Zones.Window = 0 }),
			[]string{"a zone has no more active units than its window"},
		},
		"all zones are active at once": {
			planned(func(p *procfleet.RolloutPlan) { p.Zones.AtOnce = 0 }),
			[]string{"only so many zones have active units"},
		},
		"it tolerates all failures": {
			planned(func(p *procfleet.RolloutPlan) { p.Failures = procfleet.AnyFailures }),
			[]string{"the failure that exceeds the budget stops a rollout"},
		},
		"no unit waits": {
			planned(func(p *procfleet.RolloutPlan) { p.Queue = 0 }),
			[]string{"a unit without an agent waits and gives its place back", "a waiting unit expires and is no failure"},
		},
		"units wait without a queue": {
			planned(func(p *procfleet.RolloutPlan) { p.Queue = time.Hour }),
			[]string{"a unit without an agent waits and gives its place back"},
		},
		"it forgets what agents have accepted": {
			func(s taskstore.Store) taskstore.Store { return forgetsDelivered{s} },
			[]string{"a unit with delivered items does not wait"},
		},
		"what waits was sent": {
			func(s taskstore.Store) taskstore.Store { return awayAs{s, true} },
			[]string{"a unit whose host returned is released again within the window", "a cancel ends waiting units that were never sent"},
		},
		"what waits was not sent": {
			func(s taskstore.Store) taskstore.Store { return awayAs{s, false} },
			[]string{"a waiting unit that was sent keeps its first begin", "a cancel ends waiting units that were never sent"},
		},
		"waiting units are never released again": {
			func(s taskstore.Store) taskstore.Store {
				return advancesAs{s, func(o *taskstore.Advance) { o.Returned = nil }}
			},
			[]string{"a unit whose host returned is released again within the window", "waiting units do not delay a stage and settle a task"},
		},
		"waiting units are released again at once": {
			func(s taskstore.Store) taskstore.Store {
				return advancesAs{s, func(o *taskstore.Advance) { o.Returned = []int{0, 1} }}
			},
			[]string{"a unit whose host returned is released again within the window"},
		},
		"waiting units are released outside of windows": {
			func(s taskstore.Store) taskstore.Store {
				return advancesAs{s, func(o *taskstore.Advance) { o.Closed = "" }}
			},
			[]string{"maintenance windows and pauses keep waiting units waiting"},
		},
		"expired units are plainly unreachable": {
			func(s taskstore.Store) taskstore.Store { return plainRefusals{s} },
			[]string{"a waiting unit expires and is no failure"},
		},
		"superseded hosts are failures": {
			func(s taskstore.Store) taskstore.Store { return plainRefusals{s} },
			[]string{"a superseded host is no failure of a rollout"},
		},
		"a late success resumes": {
			func(s taskstore.Store) taskstore.Store { return resumesAfterLateSuccess{s} },
			[]string{"a late success does not resume a rollout"},
		},
		"it has one stage": {
			planned(func(p *procfleet.RolloutPlan) { p.Stages = p.Stages[len(p.Stages)-1:] }),
			[]string{"a stage begins when the stage before it has ended"},
		},
		"it needs no approval": {
			planned(func(p *procfleet.RolloutPlan) { p.Approval = false }),
			[]string{"a gate waits for an approval of its stage"},
		},
		"it needs no verdict": {
			planned(func(p *procfleet.RolloutPlan) { p.Auto = false }),
			[]string{"an automatic gate waits for its verdict"},
		},
		"it does not bake": {
			planned(func(p *procfleet.RolloutPlan) { p.Bake = 0 }),
			[]string{"a stage bakes before the next begins"},
		},
		"it never stalls": {
			planned(func(p *procfleet.RolloutPlan) { p.Stall = 0 }),
			[]string{"a rollout without progress is held"},
		},
		"it releases while it is paused": {
			func(s taskstore.Store) taskstore.Store { return releasesPaused{s} },
			[]string{"a paused rollout releases nothing and keeps its deadlines"},
		},
		"it knows no deadline": {
			func(s taskstore.Store) taskstore.Store { return lateDeadline{s} },
			[]string{"a rollout releases nothing after its deadline"},
		},
		"a cancel only pauses a rollout": {
			func(s taskstore.Store) taskstore.Store { return pausesInsteadOfCancel{s} },
			[]string{"a cancel ends what a rollout has not released"},
		},
		"it ignores maintenance windows": {
			func(s taskstore.Store) taskstore.Store { return ignoresWindows{s} },
			[]string{"maintenance windows hold a rollout until they permit releases"},
		},
		"it forgets failures during a hold": {
			func(s taskstore.Store) taskstore.Store { return forgetsFailures{s} },
			[]string{"failures during a hold stop a rollout when it ends"},
		},
		"it lists new grants only": {
			func(s taskstore.Store) taskstore.Store { return listsNewGrantsOnly{s} },
			[]string{"grants with open items are listed with their deadlines"},
		},
	}
}
