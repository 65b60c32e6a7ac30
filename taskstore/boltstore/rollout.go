package boltstore

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// granted returns the number of released items of a chunk.
func (l *leg) granted() int {
	if len(l.Grants) == 0 {
		return 0
	}
	return l.Grants[len(l.Grants)-1].Upto
}

// released returns the marks of the items of a chunk that may be delivered.
func (l *leg) released(r *taskRecord) []byte {
	if r.Rollout == nil {
		return l.Marks
	}
	return l.Marks[:l.granted()]
}

// part returns the items of a chunk that a delivery may begin, and their grant: those of the grant
// up to upto, or with upto 0 all released items, which have no grant in common.
func (l *leg) part(r *taskRecord, upto int) (from, to int, grant *taskstore.Grant) {
	if r.Rollout == nil || upto == 0 {
		return 0, len(l.released(r)), nil
	}
	for i := range l.Grants {
		g := &l.Grants[i]
		if g.Upto == upto {
			return from, upto, g
		}
		from = g.Upto
	}
	return 0, 0, nil
}

// undone reports whether a chunk needs further delivery. A chunk of a rollout is done when the
// round of its cancel was, or when it has no open items.
func (r *taskRecord) undone(l *leg) bool {
	if r.Rollout == nil || r.Canceled() {
		return !l.Done
	}
	return active(l.Marks)
}

func active(marks []byte) bool { return slices.ContainsFunc(marks, activeMark) }

func waiting(marks []byte) bool { return bytes.IndexByte(marks, byte(pack.Waiting)) >= 0 }

// unit is a unit of a rollout, with its state before results are applied.
type unit struct {
	leg                      *leg
	from, to                 int
	active, waiting, counted bool
}

func (u *unit) marks() []byte { return u.leg.Marks[u.from:u.to] }

// units returns the units of the results' items; none without a rollout.
func (ls *legs) units(results []procfleet.Result) []unit {
	if ls.task.Rollout == nil {
		return nil
	}
	type start struct {
		leg  *leg
		from int
	}
	seen := map[start]bool{}
	counted := pack.CountedMarks(&ls.task.Rollout.Plan)
	var units []unit
	for i := range results {
		item := results[i].Item
		if item < 0 || item >= ls.task.Items {
			continue
		}
		_, l, err := ls.holding(item)
		if err != nil {
			continue // apply returns the error
		}
		from := strings.LastIndexByte(l.Units[:item-l.First+1], pack.UnitStart)
		if from < 0 || seen[start{l, from}] {
			continue
		}
		seen[start{l, from}] = true
		u := unit{leg: l, from: from, to: pack.UnitEnd(l.Units, from)}
		u.active, u.waiting, u.counted = active(u.marks()), waiting(u.marks()), strings.ContainsAny(string(u.marks()), counted)
		units = append(units, u)
	}
	return units
}

// count counts the changes of units, and holds a rollout with too many failed ones. It reports
// whether a unit has ended.
func (t *tx) count(r *taskRecord, units []unit) (ended bool) {
	if r.Rollout == nil {
		return false
	}
	counted := pack.CountedMarks(&r.Rollout.Plan)
	for i := range units {
		u := &units[i]
		if (u.active || u.waiting) && !slices.ContainsFunc(u.marks(), openMark) {
			ended = true
			switch {
			case u.waiting:
				r.Rollout.Waiting--
			case u.from < u.leg.granted():
				r.activate(u.leg.Zone, -1)
			}
		}
		switch now := strings.ContainsAny(string(u.marks()), counted); {
		case now && !u.counted:
			r.Rollout.Failed++
		case !now && u.counted:
			r.Rollout.Failed--
		}
	}
	if ended {
		r.Progressed = t.Now
	}
	if over(r.Rollout) && !r.Canceled() && r.Counts.Open() > 0 {
		t.hold(r, procfleet.HoldBudget, "")
	}
	return ended
}

// activate changes the number of active units of a rollout and of a zone.
func (r *taskRecord) activate(zone, by int) {
	r.Rollout.Active += by
	if zone == 0 {
		return
	}
	if r.Zones == nil {
		r.Zones = map[int]int{}
	}
	if r.Zones[zone] += by; r.Zones[zone] == 0 {
		delete(r.Zones, zone)
	}
}

// room reports whether one more unit of a zone may be active.
func (r *taskRecord) room(zone int) bool {
	p, limits := r.Rollout, r.Rollout.Plan.Zones
	active := r.Zones[zone]
	switch {
	case p.Active >= p.Window:
		return false
	case zone == 0:
		return true
	case active == 0:
		return limits.AtOnce == 0 || len(r.Zones) < limits.AtOnce
	}
	return limits.Window == 0 || active < limits.Window
}

func over(p *procfleet.Rollout) bool {
	return p.Failures != procfleet.AnyFailures && p.Failed > p.Failures
}

// hold sets a hold of a rollout, unless it has one.
func (t *tx) hold(r *taskRecord, kind procfleet.HoldKind, reason string) {
	if r.Rollout.Hold.Kind == "" {
		r.Rollout.Hold = procfleet.Hold{Kind: kind, Reason: reason, Since: t.Now}
		t.note(r, procfleet.Transition{Kind: procfleet.TransitionHeld, Hold: kind, Reason: reason, Stage: r.Rollout.Stage})
	}
}

func (t *tx) endHoldOfRollout(r *taskRecord) {
	kind := r.Rollout.Hold.Kind
	r.Rollout.Hold, r.Progressed = procfleet.Hold{}, t.Now
	t.note(r, procfleet.Transition{Kind: procfleet.TransitionResumed, Hold: kind, Stage: r.Rollout.Stage})
}

// AdvanceRollout moves a rollout on as far as time and results permit.
func (s *Store) AdvanceRollout(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error) {
	return update(ctx, s, func(t *tx) (taskstore.Advanced, error) {
		r, err := t.task(id)
		if err == nil && r.Rollout == nil {
			err = taskstore.ErrNotFound
		}
		if err != nil {
			return taskstore.Advanced{}, err
		}
		ls := t.legs(r)
		var items []taskstore.GrantedItems
		if o.All {
			if items, err = t.openGrants(ls); err != nil {
				return taskstore.Advanced{}, err
			}
		}
		t.heed(r, o.Closed)
		if o.Closed != "" {
			o.Returned = nil
		}
		released, err := t.advance(ls, o.Returned)
		if err != nil {
			return taskstore.Advanced{}, err
		}
		return taskstore.Advanced{Task: taskOf(r), Items: append(items, released...)}, ls.save()
	})
}

// openGrants returns the grants with open items. A grant of a time to come was made before the
// clock stepped back, and is dated back.
func (t *tx) openGrants(ls *legs) (list []taskstore.GrantedItems, err error) {
	legs, err := ls.all()
	if err != nil {
		return nil, err
	}
	for chunk, l := range legs {
		from := 0
		for i := range l.Grants {
			g := &l.Grants[i]
			if g.At.After(t.Now) {
				g.At, g.Deadline = t.Now, t.Now.Add(ls.task.Rollout.Plan.UnitTimeout)
				ls.dirty[chunk] = true
			}
			if items := grantedItems(l, chunk, from, *g); items.Pending+items.Delivered+items.Waiting > 0 {
				list = append(list, items)
			}
			from = g.Upto
		}
	}
	return list, nil
}

func grantedItems(l *leg, chunk, from int, g taskstore.Grant) taskstore.GrantedItems {
	open, delivered := pack.OpenItems(l.Marks[from:g.Upto])
	waiting := bytes.Count(l.Marks[from:g.Upto], []byte{byte(pack.Waiting)})
	return taskstore.GrantedItems{
		Chunk: chunk, From: from, First: l.First + from, Grant: g, Pending: len(open) - len(delivered), Delivered: len(delivered), Waiting: waiting,
	}
}

// heed sets or ends the hold of maintenance windows.
func (t *tx) heed(r *taskRecord, closed string) {
	p := r.Rollout
	switch {
	case !t.mayAdvance(r):
	case closed == "" && p.Hold.Kind == procfleet.HoldWindow:
		t.endHoldOfRollout(r)
	case closed != "" && p.Hold.Kind == "" && r.NextGrant < p.Plan.Stages[len(p.Plan.Stages)-1].Chunks:
		t.hold(r, procfleet.HoldWindow, closed)
	}
}

func (t *tx) mayAdvance(r *taskRecord) bool {
	return !r.State.Done() && t.Now.Before(r.Deadline) && !r.Held() && !r.Canceled()
}

func (t *tx) advance(ls *legs, returned []int) (released []taskstore.GrantedItems, err error) {
	r := ls.task
	p := r.Rollout
	for t.mayAdvance(r) && p.Hold.Kind == "" {
		last := p.Stage == len(p.Plan.Stages)-1
		switch {
		case over(p):
			t.hold(r, procfleet.HoldBudget, "")
		case p.Phase == procfleet.PhaseReleasing:
			again, err := t.releaseAgain(ls, returned)
			if err != nil {
				return nil, err
			}
			more, ended, err := t.grant(ls)
			if err != nil {
				return nil, err
			}
			released, returned = append(append(released, again...), more...), nil
			if ended && last && p.Waiting > 0 {
				t.settle(r)
				return released, nil
			}
			if !ended {
				if p.Plan.Stall > 0 && t.Now.Sub(r.Progressed) >= p.Plan.Stall {
					t.hold(r, procfleet.HoldStalled, "")
				}
				return released, nil
			}
			t.enter(r, procfleet.PhaseBaking)
		case last:
			return released, nil
		case p.Phase == procfleet.PhaseBaking:
			if p.Since.After(t.Now) {
				p.Since = t.Now // the clock stepped back
			}
			if t.Now.Sub(p.Since) < p.Plan.Bake {
				return released, nil
			}
			t.enter(r, procfleet.PhaseGate)
		case p.Plan.Auto && p.Judged <= p.Stage:
			return released, nil
		case p.Plan.Approval:
			t.hold(r, procfleet.HoldApproval, "")
		default:
			t.nextStage(r, procfleet.TransitionStage)
		}
	}
	return released, nil
}

func (t *tx) enter(r *taskRecord, phase procfleet.RolloutPhase) {
	r.Rollout.Phase, r.Rollout.Since = phase, t.Now
}

func (t *tx) nextStage(r *taskRecord, why procfleet.TransitionKind) {
	r.Rollout.Stage++
	t.note(r, procfleet.Transition{Kind: why, Stage: r.Rollout.Stage})
	t.enter(r, procfleet.PhaseReleasing)
}

// grant releases as many units of the current stage as the windows permit. It reports whether
// all units of the stage have ended.
func (t *tx) grant(ls *legs) (released []taskstore.GrantedItems, ended bool, err error) {
	r := ls.task
	p := r.Rollout
	for chunk := r.NextGrant; chunk < p.Plan.Stages[p.Stage].Chunks && p.Active < p.Window; chunk++ {
		l, err := ls.leg(chunk)
		if err != nil {
			return nil, false, err
		}
		from, upto := l.granted(), l.granted()
		for upto < len(l.Units) && r.room(l.Zone) {
			end := pack.UnitEnd(l.Units, upto)
			if active(l.Marks[upto:end]) {
				r.activate(l.Zone, 1)
			}
			p.Released++
			upto = end
		}
		if upto > from {
			g := taskstore.Grant{Upto: upto, At: t.Now, Deadline: t.Now.Add(p.Plan.UnitTimeout)}
			l.Grants = append(l.Grants, g)
			ls.dirty[chunk] = true
			items := grantedItems(l, chunk, from, g)
			items.New = true
			released = append(released, items)
			r.Progressed = t.Now
		}
		if upto == len(l.Units) && chunk == r.NextGrant {
			r.NextGrant++
		}
	}
	return released, p.Active == 0, nil
}

// moveGrants moves the deadlines of grants by the time for which the task was held.
func (t *tx) moveGrants(r *taskRecord, held time.Duration) error {
	if r.Rollout == nil || held <= 0 {
		return nil
	}
	ls := t.legs(r)
	legs, err := ls.all()
	if err != nil {
		return err
	}
	for chunk, l := range legs {
		if len(l.Grants) == 0 || !active(l.released(r)) {
			continue
		}
		for i := range l.Grants {
			l.Grants[i].Deadline = l.Grants[i].Deadline.Add(held)
		}
		ls.dirty[chunk] = true
	}
	r.Progressed = t.Now
	return ls.save()
}

// EndHold ends a hold of a rollout.
func (s *Store) EndHold(ctx context.Context, id procfleet.TaskID, kind procfleet.HoldKind, failures, seq int) (procfleet.Task, error) {
	other := func(_ *tx, r *taskRecord) (bool, error) {
		if r.Rollout == nil {
			return false, taskstore.ErrNotFound
		}
		return r.Rollout.Hold.Kind != kind, nil
	}
	return s.control(ctx, id, seq, other, func(t *tx, r *taskRecord) error {
		p := r.Rollout
		if kind == procfleet.HoldBudget && failures != procfleet.AnyFailures && failures < p.Failed {
			return taskstore.ErrFailures
		}
		if kind == procfleet.HoldApproval {
			p.Hold, r.Progressed = procfleet.Hold{}, t.Now
			t.nextStage(r, procfleet.TransitionApproved)
			return nil
		}
		t.endHoldOfRollout(r)
		switch kind {
		case procfleet.HoldBudget:
			p.Failures = failures
		case procfleet.HoldUnhealthy, procfleet.HoldInconclusive:
			p.Judged = p.Stage + 1
		case procfleet.HoldStalled, procfleet.HoldWindow, procfleet.HoldOperator, procfleet.HoldApproval:
		}
		return nil
	})
}

// JudgeStage ends the automatic gate of a stage.
func (s *Store) JudgeStage(ctx context.Context, id procfleet.TaskID, stage int, hold procfleet.Hold) (procfleet.Task, error) {
	return update(ctx, s, func(t *tx) (procfleet.Task, error) {
		r, err := t.task(id)
		if err == nil && r.Rollout == nil {
			err = taskstore.ErrNotFound
		}
		if err == nil && r.State.Done() {
			err = taskstore.ErrDone
		}
		if err != nil {
			return procfleet.Task{}, err
		}
		p := r.Rollout
		if p.Phase != procfleet.PhaseGate || p.Stage != stage || p.Hold.Kind != "" || p.Judged > stage {
			return taskOf(r), nil
		}
		if hold.Kind == "" {
			p.Judged = stage + 1
		} else {
			t.hold(r, hold.Kind, hold.Reason)
		}
		return taskOf(r), t.putTask(r)
	})
}
