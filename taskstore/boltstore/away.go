package boltstore

import (
	"context"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// Away lets units of a rollout wait for their hosts.
func (s *Store) Away(ctx context.Context, id procfleet.TaskID, chunk int, items []int, sent bool) error {
	items = slices.Clone(items)
	return change(ctx, s, func(t *tx) error {
		r, err := t.task(id)
		if err != nil || r.State.Done() || r.Canceled() || r.Rollout == nil || r.Rollout.Plan.Queue == 0 {
			return err
		}
		ls := t.legs(r)
		l, err := ls.leg(chunk)
		if err != nil {
			return err
		}
		chosen := map[int]bool{}
		for _, item := range items {
			i := item - l.First
			if i < 0 || i >= l.granted() || pack.Mark(l.Marks[i]) != pack.Pending {
				continue
			}
			from := pack.UnitOf(l.Units, i)
			if ls.remark(chunk, l, from, pack.Pending, pack.Waiting) {
				chosen[from] = true
				r.activate(l.Zone, -1)
				r.Rollout.Waiting++
			}
		}
		l.Grants = pack.Regrant(l.Grants, l.Units, chosen, func(g *taskstore.Grant) {
			g.At, g.Deadline = t.Now, t.Now
			if !sent {
				g.Begun = time.Time{}
			}
		})
		r.Progressed = t.Now
		ls.dirty[chunk] = true
		return ls.save()
	})
}

// remark changes the marks of the items of a unit, unless one is delivered.
func (ls *legs) remark(chunk int, l *leg, from int, old, now pack.Mark) bool {
	end := pack.UnitEnd(l.Units, from)
	if slices.Contains(l.Marks[from:end], byte(pack.Delivered)) {
		return false
	}
	for i := from; i < end; i++ {
		if pack.Mark(l.Marks[i]) == old {
			ls.mark(chunk, i, now)
		}
	}
	return true
}

// releaseAgain releases those of waiting units that the windows permit.
func (t *tx) releaseAgain(ls *legs, returned []int) (released []taskstore.GrantedItems, err error) {
	returned = slices.DeleteFunc(slices.Sorted(slices.Values(returned)), func(i int) bool { return i < 0 || i >= ls.task.Items })
	for len(returned) > 0 {
		chunk, l, err := ls.holding(returned[0])
		if err != nil {
			return nil, err
		}
		chosen := map[int]bool{}
		for ; len(returned) > 0 && returned[0] < l.First+len(l.Marks); returned = returned[1:] {
			from := returned[0] - l.First
			if l.Units[from] != pack.UnitStart || !waiting(l.Marks[from:pack.UnitEnd(l.Units, from)]) || !ls.task.room(l.Zone) {
				continue
			}
			ls.remark(chunk, l, from, pack.Waiting, pack.Pending)
			chosen[from] = true
			ls.task.activate(l.Zone, 1)
			ls.task.Rollout.Waiting--
		}
		if len(chosen) == 0 {
			continue
		}
		l.Grants = pack.Regrant(l.Grants, l.Units, chosen, func(g *taskstore.Grant) {
			g.At, g.Deadline = t.Now, t.Now.Add(ls.task.Rollout.Plan.UnitTimeout)
		})
		ls.dirty[chunk] = true
		ls.task.Progressed = t.Now
		from := 0
		for _, g := range l.Grants {
			if chosen[from] {
				items := grantedItems(l, chunk, from, g)
				items.New = true
				released = append(released, items)
			}
			from = g.Upto
		}
	}
	return released, nil
}

func (t *tx) settle(r *taskRecord) {
	if !r.Settled {
		r.Settled = true
		t.note(r, procfleet.Transition{Kind: procfleet.TransitionSettled, Stage: r.Rollout.Stage})
	}
}

// cancelWaiting ends the waiting items of a canceled task that were never sent. The others are
// requested from their agents, as all items that were sent.
func (ls *legs) cancelWaiting(chunk int, l *leg) {
	from := 0
	for _, g := range l.Grants {
		for ; from < g.Upto; from = pack.UnitEnd(l.Units, from) {
			if !waiting(l.Marks[from:pack.UnitEnd(l.Units, from)]) {
				continue
			}
			ls.task.Rollout.Waiting--
			if g.Begun.IsZero() {
				ls.remark(chunk, l, from, pack.Waiting, pack.Cancelled)
			} else {
				ls.remark(chunk, l, from, pack.Waiting, pack.Pending)
				ls.task.activate(l.Zone, 1)
			}
		}
	}
}
