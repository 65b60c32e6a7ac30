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

// repair is work on one task that waits for the broker or for agents. One
// task has one repair at a time.
type repair struct {
	*progress
	task   procfleet.Task
	now    time.Time // by the store's clock, when the task was read
	weight int
	do     func(ctx context.Context) error
}

// progress is the state of a task between two repairs. It is lost with the lease:
// then the work begins again.
type progress struct {
	busy   bool      // a repair runs; guarded by the shard's mu
	called time.Time // when all results of an overdue task had been requested again; zero until then
	begun  bool      // of an overdue task: the requests have begun
	cursor string    // where requesting resends continues
	chunk  int       // of an overdue task: where requesting pending items continues
	// denied has the items of an overdue task whose agent reports that it never
	// received them. moved is set if agents have others, whose results may still
	// arrive.
	denied map[int]bool
	moved  bool
}

func (p *progress) empty() bool { return !p.begun && p.cursor == "" }

// begin reserves what a repair of a task needs; nil means that one runs, or
// that too many do.
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

// finish ends a repair that begin returned.
func (sh *shard) finish(r *repair) {
	sh.repairs.release(r.weight)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r.busy = false
	if r.empty() {
		delete(sh.open, r.task.ID)
	}
}

// forgetProgress removes the state of tasks without a running repair.
func (sh *shard) forgetProgress() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for id, p := range sh.open {
		if !p.busy {
			delete(sh.open, id)
		}
	}
}

// run carries out a repair. It handles a panic as an error.
func (sh *shard) run(ctx context.Context, r *repair) {
	defer sh.finish(r)
	err := agentlink.Guarded(func() error { return r.do(ctx) })
	if err == nil || ctx.Err() != nil {
		return
	}
	log := sh.cfg.Log.WithError(err).WithField("task", r.task.ID)
	after := sh.cfg.Timing.RevisitMax
	switch {
	case errors.Is(err, bus.ErrUnavailable): // before Unavailable, which may match it too
		after = sh.cfg.Timing.RevisitMin
		sh.busAgain.Store(sh.cfg.Link.Clock.Now().Add(after).UnixNano())
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

// busAvailable reports whether JetStream may be used.
func (s *Sweeper) busAvailable(now time.Time) bool { return now.UnixNano() >= s.busAgain.Load() }

// repairSlots bounds the repairs of a worker by the items that they hold in
// memory. Tasks that are not overdue get at most half of them, so that those
// which only wait for slow hosts never keep an overdue one open.
type repairSlots struct {
	mu   sync.Mutex
	left int
	half int
}

func newRepairSlots(items int) *repairSlots { return &repairSlots{left: items, half: items / 2} }

// reserve acquires slots if any are free. A task may get more than are left, so that
// one that needs more than all is repaired too.
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
