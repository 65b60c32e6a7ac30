package sweep

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/storecall"
)

// repair is work on one task that waits for the broker or for agents. A task has at
// most one repair at a time.
type repair struct {
	*progress
	task   procfleet.Task
	now    time.Time                // store time at which the task was read
	grants []taskstore.GrantedItems // of a rollout: its grants with open items
	weight int
	do     func(ctx context.Context) error
}

// progress is the state of a task's repair between visits. It is deleted with the
// lease; the next holder starts over.
type progress struct {
	busy   bool      // a repair is running; guarded by the shard's mu
	called time.Time // overdue task: local time when the last resend was requested; zero until then
	begun  bool      // overdue task: resend requests have started
	cursor string    // where the next visit continues to request resends
	chunk  int       // overdue task: next chunk for requestPending
	// denied has the items of an overdue task whose agents report that they never
	// received them. moved is set if results of other items may still arrive.
	denied map[int]bool
	moved  bool
}

// grantOf returns the grant of an item that a rollout has released; nil for other items.
func (r *repair) grantOf(item int) *taskstore.GrantedItems {
	for i := range r.grants {
		if g := &r.grants[i]; item >= g.First && item < g.First+g.Grant.Upto-g.From {
			return g
		}
	}
	return nil
}

// began returns the time at which an item could begin at the earliest.
func (r *repair) began(item int) time.Time {
	if g := r.grantOf(item); g != nil {
		return g.Grant.At
	}
	return r.task.CreatedAt
}

func (p *progress) empty() bool { return !p.begun && p.cursor == "" }

// begin reserves slots for a repair of a task. It returns nil if a repair of the task
// is running or no slots are free.
func (sh *shard) begin(task *procfleet.Task, now time.Time, overdue bool) *repair {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	known := sh.open[task.ID]
	weight := min(task.Items, resendPage)
	if known != nil && known.busy || !sh.repairs.reserve(weight, overdue) {
		return nil
	}
	if known == nil {
		known = &progress{}
		sh.open[task.ID] = known
	}
	known.busy = true
	return &repair{progress: known, task: *task, now: now, weight: weight}
}

func (sh *shard) finish(r *repair) {
	sh.repairs.release(r.weight)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r.busy = false
	if r.empty() {
		delete(sh.open, r.task.ID)
	}
}

func (sh *shard) forgetProgress() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for id, p := range sh.open {
		if !p.busy {
			delete(sh.open, id)
		}
	}
}

// run executes a repair and logs its error or panic.
func (sh *shard) run(ctx context.Context, r *repair) {
	defer sh.finish(r)
	err := agentlink.Guarded(func() error { return r.do(ctx) })
	if err == nil || ctx.Err() != nil {
		return
	}
	log := sh.cfg.Log.WithError(err).WithField("task", r.task.ID)
	after := sh.cfg.Timing.RevisitMax
	switch {
	case errors.Is(err, bus.ErrUnavailable): // first, because Unavailable may match it too
		after = sh.cfg.Timing.RevisitMin
		sh.busAgain.Store(sh.cfg.Clock.Now().Add(after).UnixNano())
		log.Warn("task recovery deferred: JetStream unavailable")
	case storecall.Unavailable(err):
		sh.cfg.Outage.Failed(time.Now(), err)
		return
	default:
		log.Error("task recovery failed, retrying")
	}
	if err := sh.revisit(ctx, r.task.ID, after); err != nil && ctx.Err() == nil {
		log.WithField("revisit", err.Error()).Warn("next visit not stored")
	}
}

func (s *Sweeper) revisit(ctx context.Context, id procfleet.TaskID, after time.Duration) error {
	if err := s.cfg.Store.Revisit(ctx, taskstore.NextVisit{Task: id, After: storecall.Jitter(after)}); err != nil {
		return fmt.Errorf("set the next visit: %w", err)
	}
	return nil
}

// busAvailable reports whether JetStream may be used. A time further ahead than any pause was
// stored before the clock stepped back.
func (s *Sweeper) busAvailable(now time.Time) bool {
	left := time.Duration(s.busAgain.Load() - now.UnixNano())
	return left <= 0 || left > s.cfg.Timing.RevisitMin
}

// repairSlots bounds the repairs of a worker by the items that they have in memory.
// Tasks that are not overdue use at most half of the slots, so that tasks with slow
// hosts cannot delay overdue tasks.
type repairSlots struct {
	mu   sync.Mutex
	left int
	half int
}

func newRepairSlots(items int) *repairSlots { return &repairSlots{left: items, half: items / 2} }

// reserve acquires weight slots if any are free. It may exceed the limit, so that a
// task larger than the limit is repaired too.
func (s *repairSlots) reserve(weight int, overdue bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.left
	if !overdue {
		left -= s.half
	}
	if left <= 0 {
		return false
	}
	s.left -= weight
	return true
}

func (s *repairSlots) release(weight int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left += weight
}
