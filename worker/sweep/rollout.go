package sweep

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/metrics"
)

// Releaser moves rollouts on, and publishes their released items.
type Releaser interface {
	Advance(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error)
	Publish(ctx context.Context, task *procfleet.Task, released []taskstore.GrantedItems) error
}

// visitRollout plans the repair of a rollout. Each visit has one, because what a rollout waits
// for may end at any time.
func (sh *shard) visitRollout(p *plan, task *procfleet.Task, now time.Time) {
	after := sh.cfg.Timing.RevisitMin
	if w := task.Rollout; w.Waiting > 0 && w.Active == 0 && w.Released == w.Plan.Units() {
		after = waitingEvery // nothing else can happen
	}
	p.later(task.ID, after)
	if !sh.busAvailable(now) {
		return
	}
	if r := sh.begin(task, now, false); r != nil {
		r.do = func(ctx context.Context) error { return sh.repairRollout(ctx, r) }
		p.repairs = append(p.repairs, r)
	}
}

// repairRollout moves a rollout on, publishes released items that were lost, requests missing
// results, and ends overdue items.
func (s *Sweeper) repairRollout(ctx context.Context, r *repair) error {
	task := &r.task
	if !task.Dispatched {
		if ageOf(task, r.now) < s.cfg.Timing.DispatchAfter {
			return nil
		}
		if err := s.cfg.Audit.Require(ctx, audit.OfTask(audit.Accepted, task)); err != nil {
			return err
		}
	}
	a, err := s.cfg.Releaser.Advance(ctx, task.ID, taskstore.Advance{All: true})
	if err != nil {
		return fmt.Errorf("advance the rollout: %w", err)
	}
	s.tellHold(&a.Task)
	if !task.Dispatched {
		if err := s.cfg.Store.Dispatched(ctx, task.ID, nil); err != nil {
			return fmt.Errorf("store as dispatched: %w", err)
		}
		s.cfg.Metrics.SweepActions.Add(1, metrics.SweepDispatch)
	}
	r.task, r.grants = a.Task, a.Items
	if err := s.visitWaiting(ctx, r); err != nil {
		return err
	}
	if s.needsCancels(&r.task, r.now) {
		if err := s.requeueCancels(ctx, &r.task); err != nil {
			return err
		}
	}
	if err := s.requeueReleased(ctx, r); err != nil {
		return err
	}
	return s.visitGrants(ctx, r)
}

// maxHolds bounds the holds in memory. When it is reached, all are forgotten.
const maxHolds = 1 << 12

// toldHolds are the begins of the holds that this worker has logged.
type toldHolds struct {
	mu   sync.Mutex
	told map[procfleet.TaskID]time.Time
}

// isNew reports whether a hold was not logged before. The zero hold is not new.
func (t *toldHolds) isNew(id procfleet.TaskID, h procfleet.Hold) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	since, known := t.told[id]
	if h.Kind == "" {
		delete(t.told, id)
		return false
	}
	if known && since.Equal(h.Since) {
		return false
	}
	if t.told == nil || len(t.told) >= maxHolds {
		t.told = map[procfleet.TaskID]time.Time{}
	}
	t.told[id] = h.Since
	return true
}

// tellHold logs and counts a new hold of a rollout.
func (s *Sweeper) tellHold(task *procfleet.Task) {
	h := task.Rollout.Hold
	if !s.holds.isNew(task.ID, h) {
		return
	}
	s.cfg.Metrics.Holds.Add(1, string(h.Kind))
	s.cfg.Log.WithFields(logrus.Fields{"task": task.ID, "kind": h.Kind, "reason": h.Reason, "failed": task.Rollout.Failed}).Info("rollout held")
}

// requeueReleased publishes the chunks of a canceled rollout, or the pending items of grants of
// some time ago. The stream drops those that it received a short time ago.
func (s *Sweeper) requeueReleased(ctx context.Context, r *repair) error {
	switch {
	case r.task.Canceled():
		return s.requeue(ctx, &r.task, r.now)
	case r.task.Held():
		return nil
	}
	var lost []taskstore.GrantedItems
	for _, g := range r.grants {
		if !g.New && g.Pending > 0 && r.now.Sub(g.Grant.At) >= s.cfg.Timing.RequeueAfter && r.now.Before(g.Grant.Deadline) {
			lost = append(lost, g)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	if err := s.cfg.Releaser.Publish(ctx, &r.task, lost); err != nil {
		return err
	}
	s.cfg.Metrics.SweepActions.Add(len(lost), metrics.SweepRequeue)
	return nil
}

// visitGrants requests the missing results of grants, and ends the open items of grants that are
// overdue by longer than the last call.
func (s *Sweeper) visitGrants(ctx context.Context, r *repair) error {
	var rows, missing []procfleet.ItemResult
	chunk, late := -1, false
	for i := range r.grants {
		g := &r.grants[i]
		overdue := r.now.Sub(g.Grant.Deadline)
		if g.New || g.Waiting > 0 || overdue <= 0 && (g.Delivered == 0 || r.now.Sub(g.Grant.At) < s.cfg.Timing.ResendAfter) {
			continue
		}
		if g.Chunk != chunk {
			var err error
			if rows, err = s.cfg.Store.Chunk(ctx, r.task.ID, g.Chunk); err != nil {
				return fmt.Errorf("read chunk %d: %w", g.Chunk, err)
			}
			chunk = g.Chunk
		}
		delivered, pending := inState(rows[g.From:g.Grant.Upto], procfleet.StateDelivered), inState(rows[g.From:g.Grant.Upto], procfleet.StatePending)
		if overdue <= 0 {
			missing = append(missing, delivered...)
			continue
		}
		late = true
		visit := s.endGrant
		if overdue < s.cfg.Timing.LastCall {
			visit = s.lastCallOfGrant
		}
		if err := visit(ctx, r, g, delivered, pending); err != nil {
			return err
		}
	}
	if r.begun = late; !late {
		r.denied = nil
	}
	for len(missing) > 0 {
		page := missing[:min(len(missing), resendPage)]
		missing = missing[len(page):]
		if err := s.resendOf(ctx, r, page, false); err != nil {
			return err
		}
	}
	return nil
}

func inState(rows []procfleet.ItemResult, state procfleet.State) (found []procfleet.ItemResult) {
	for i := range rows {
		if rows[i].State == state {
			found = append(found, rows[i])
		}
	}
	return found
}

// lastCallOfGrant requests the results of overdue items.
func (s *Sweeper) lastCallOfGrant(ctx context.Context, r *repair, g *taskstore.GrantedItems, delivered, pending []procfleet.ItemResult) error {
	if r.denied == nil {
		r.denied = map[int]bool{}
	}
	if err := s.resendOf(ctx, r, delivered, true); err != nil {
		return err
	}
	if g.Grant.Begun.IsZero() || len(pending) == 0 {
		return nil
	}
	return s.requestPendingOfChunk(ctx, r, g.Chunk, byHost(pending))
}

// endGrant ends overdue items. Those of a paused task that no agent has accepted remain open.
func (s *Sweeper) endGrant(ctx context.Context, r *repair, g *taskstore.GrantedItems, delivered, pending []procfleet.ItemResult) error {
	allowed := r.task
	allowed.CreatedAt, allowed.Deadline = g.Grant.At, g.Grant.Deadline
	var results []procfleet.Result
	for i := range delivered {
		results = append(results, s.timedOut(&allowed, &delivered[i]))
	}
	if r.task.Held() {
		pending = nil
	}
	for i := range pending {
		results = append(results, s.unreachable(&allowed, &pending[i], g.Grant.Begun.IsZero() || r.denied[pending[i].Index]))
	}
	_, err := s.end(ctx, &r.task, results)
	return err
}
