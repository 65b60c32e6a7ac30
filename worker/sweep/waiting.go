package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/undo"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
)

// waitingEvery is the time between two visits of the waiting units of a rollout.
const waitingEvery = 10 * time.Second

// waitingPage is the number of presences read at once.
const waitingPage = 1000

// maxNewer is the maximum number of new tasks that one visit reads for [procfleet.RolloutPlan]
// Coalesce.
const maxNewer = 1000

// waitingVisit is the last visit of the waiting units of a rollout.
type waitingVisit struct {
	at time.Time // local
	// newest and before are the newest tasks of the last visit and the one before it. A task may be
	// stored later than one with a higher number, so a visit reads the tasks after before.
	newest, before procfleet.Number
}

// maxVisits bounds the visits in memory. When it is reached, all are forgotten.
const maxVisits = 1 << 12

// waitingVisits are the last visits of rollouts with waiting units.
type waitingVisits struct {
	mu sync.Mutex
	of map[procfleet.TaskID]waitingVisit
}

// begin returns the last visit of a task, the zero visit without one, and whether another is due.
func (v *waitingVisits) begin(id procfleet.TaskID) (last waitingVisit, due bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	last = v.of[id]
	return last, time.Since(last.at) >= waitingEvery
}

func (v *waitingVisits) end(id procfleet.TaskID, visit waitingVisit) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.of == nil || len(v.of) >= maxVisits {
		v.of = map[procfleet.TaskID]waitingVisit{}
	}
	v.of[id] = visit
}

// waitingItem is an item that waits for its host.
type waitingItem struct {
	procfleet.ItemResult
	chunk, at int // at is its index in the chunk
	unit      int // index in the task of the first item of its unit
	grant     taskstore.Grant
}

// queueEnded reports whether the hosts of a task have been waited for long enough.
func (s *Sweeper) queueEnded(task *procfleet.Task, now time.Time) bool {
	return now.Sub(s.stepped.Since(task.ID, task.CreatedAt, now)) >= task.Rollout.Plan.Queue
}

// visitWaiting ends the waiting items whose time is over, cancels those that a later task replaces,
// and releases the units whose hosts have returned.
func (s *Sweeper) visitWaiting(ctx context.Context, r *repair) error {
	waits := func(g taskstore.GrantedItems) bool { return g.Waiting > 0 }
	if r.task.Canceled() || !slices.ContainsFunc(r.grants, waits) {
		return nil
	}
	visit, due := s.waiting.begin(r.task.ID)
	if !due {
		return nil
	}
	visit.at = time.Now()
	defer func() { s.waiting.end(r.task.ID, visit) }()
	items, err := s.waitingItems(ctx, r)
	if err != nil {
		return err
	}
	plan := &r.task.Rollout.Plan
	if s.queueEnded(&r.task, r.now) {
		results := make([]procfleet.Result, len(items))
		for i := range items {
			results[i] = s.expired(&r.task, &items[i])
		}
		_, err := s.end(ctx, &r.task, results)
		return err
	}
	if plan.Coalesce {
		if err := s.coalesce(ctx, r, &visit, items); err != nil {
			return err
		}
	}
	return s.releaseReturned(ctx, r, items)
}

func (s *Sweeper) waitingItems(ctx context.Context, r *repair) (items []waitingItem, err error) {
	var rows []procfleet.ItemResult
	chunk := -1
	for i := range r.grants {
		g := &r.grants[i]
		if g.Waiting == 0 {
			continue
		}
		if g.Chunk != chunk {
			chunk = g.Chunk
			if rows, err = s.cfg.Store.Chunk(ctx, r.task.ID, chunk); err != nil {
				return nil, fmt.Errorf("read chunk %d: %w", chunk, err)
			}
		}
		unit := g.From
		for at := g.From; at < g.Grant.Upto; at++ {
			if rows[at].Item.Target.Host != rows[unit].Item.Target.Host {
				unit = at
			}
			if rows[at].State == procfleet.StatePending {
				items = append(items, waitingItem{rows[at], chunk, at, rows[unit].Index, g.Grant})
			}
		}
	}
	return items, nil
}

func (s *Sweeper) expired(task *procfleet.Task, it *waitingItem) procfleet.Result {
	host, queue := it.Item.Target.Key(), task.Rollout.Plan.Queue
	message := fmt.Sprintf("never delivered to host %s: no agent of it was connected until %v after the acceptance; start procfleet-agent on the host, then repeat", host, queue)
	if !it.grant.Begun.IsZero() {
		message = fmt.Sprintf("no agent of host %s was connected until %v after the acceptance, unknown whether it received the command before: query the status, then repeat if needed", host, queue)
	}
	result := agentlink.ServerResult(it.Index, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, message, s.cfg.Clock.Now())
	result.Refusal = procfleet.RefusalExpired
	return result
}

// releaseReturned releases the units whose hosts have returned. An agent that has not announced
// itself since its unit waits may be the one that was not connected.
func (s *Sweeper) releaseReturned(ctx context.Context, r *repair, items []waitingItem) error {
	if r.task.Held() {
		return nil
	}
	units := slices.CompactFunc(items, func(a, b waitingItem) bool { return a.unit == b.unit })
	var returned []int
	for page := range slices.Chunk(units, waitingPage) {
		hosts := make([]procfleet.Host, len(page))
		for i := range page {
			hosts[i] = page[i].Item.Target.Host
		}
		presences, err := s.cfg.Store.Presences(ctx, hosts)
		if err != nil {
			return fmt.Errorf("read the presences of %d hosts: %w", len(hosts), err)
		}
		for i := range page {
			if !presences[i].Host.IsZero() && presences[i].SeenAt.After(page[i].grant.At) {
				returned = append(returned, page[i].unit)
			}
		}
	}
	if len(returned) == 0 {
		return nil
	}
	if _, err := s.cfg.Releaser.Advance(ctx, r.task.ID, taskstore.Advance{Returned: returned}); err != nil {
		return fmt.Errorf("release %d returned hosts: %w", len(returned), err)
	}
	s.cfg.Recorder.Hints.Change(r.task.ID)
	return nil
}

// coalesce cancels the waiting items whose processes a later task operates.
func (s *Sweeper) coalesce(ctx context.Context, r *repair, visit *waitingVisit, items []waitingItem) error {
	newest, err := s.cfg.Store.Tasks(ctx, taskstore.TaskQuery{Limit: 1})
	if err != nil || len(newest) == 0 {
		return err
	}
	since := r.task
	since.Number = max(since.Number, visit.before)
	later := make(map[undo.ProcessAt]procfleet.TaskID, len(items))
	for i := range items {
		later[items[i].process()] = ""
	}
	if _, err := undo.FindLater(ctx, s.cfg.Store, &since, maxNewer, later); err != nil {
		return fmt.Errorf("find later tasks: %w", err)
	}
	visit.before, visit.newest = visit.newest, newest[0].Number
	replaced := map[procfleet.TaskID][]taskstore.ChunkItems{}
	for i := range items {
		it := &items[i]
		id := later[it.process()]
		if id == "" {
			continue
		}
		list := replaced[id]
		if n := len(list); n == 0 || list[n-1].Chunk != it.chunk {
			list = append(list, taskstore.ChunkItems{Chunk: it.chunk})
		}
		last := &list[len(list)-1]
		last.Items = append(last.Items, it.at)
		replaced[id] = list
	}
	for id, list := range replaced {
		reason := fmt.Sprintf("task %s operates the process later", id)
		task, err := s.cfg.Store.CancelItems(ctx, r.task.ID, list, procfleet.CancelDrain, reason, taskstore.AnySeq)
		if errors.Is(err, taskstore.ErrDone) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cancel items that task %s replaces: %w", id, err)
		}
		r.task = task
	}
	return nil
}

func (it *waitingItem) process() undo.ProcessAt {
	return undo.ProcessAt{Host: it.Item.Target.Host, Key: it.Spec.Key()}
}
