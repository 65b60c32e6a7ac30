package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
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

// progress is what is remembered of a task from one repair to the next. It
// may be lost with the lease: then the work begins again.
type progress struct {
	busy   bool      // a repair runs; guarded by the shard's mu
	called time.Time // when all agents of an overdue task had been asked to send again; zero until then
	begun  bool      // of an overdue task: asking has begun
	cursor string    // where requesting resends continues
	chunk  int       // of an overdue task: where asking about pending items continues
	// denied has the items of an overdue task whose agent says that it never
	// received them, and moved says that agents have others, whose results may
	// still arrive.
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

// over ends a repair that begin returned.
func (sh *shard) over(r *repair) {
	sh.repairs.release(r.weight)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r.busy = false
	if r.empty() {
		delete(sh.open, r.task.ID)
	}
}

// forgetProgress forgets the tasks without a running repair.
func (sh *shard) forgetProgress() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for id, p := range sh.open {
		if !p.busy {
			delete(sh.open, id)
		}
	}
}

// run carries out a repair. A panic over it is an error.
func (sh *shard) run(ctx context.Context, r *repair) {
	defer sh.over(r)
	err := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		return r.do(ctx)
	}()
	if err == nil || ctx.Err() != nil {
		return
	}
	log := sh.log.WithError(err).WithField("task", r.task.ID)
	after := sh.timing.Sweep.RevisitMax
	switch {
	case errors.Is(err, bus.ErrUnavailable): // may wrap what an unavailable store answers too
		after = sh.timing.Sweep.RevisitMin
		sh.busAgain.Store(sh.clock.now().Add(after).UnixNano())
		log.Warn("task recovery deferred: JetStream unavailable")
	case storeAway(err):
		sh.outage.away(time.Now(), err)
		return
	default:
		log.Error("task recovery failed, retrying")
	}
	if err := sh.revisit(ctx, r.task.ID, after); err != nil && ctx.Err() == nil {
		log.WithField("revisit", err.Error()).Warn("next visit not stored")
	}
}

func (sh *shard) revisit(ctx context.Context, id procfleet.TaskID, after time.Duration) error {
	if err := sh.store.Revisit(ctx, taskstore.NextVisit{Task: id, After: jitter(after)}); err != nil {
		return fmt.Errorf("set the next visit: %w", err)
	}
	return nil
}

// busThere reports whether JetStream may be used.
func (sh *shard) busThere(now time.Time) bool { return now.UnixNano() >= sh.busAgain.Load() }

// repairSlots bounds the repairs of a worker by the items that they hold in
// memory. Tasks that are not overdue get at most half of them, so that those
// which only wait for slow hosts never keep an overdue one open.
type repairSlots struct {
	mu   sync.Mutex
	left int
	half int
}

func newRepairSlots(items int) *repairSlots { return &repairSlots{left: items, half: items / 2} }

// reserve takes slots if there are so many; a task that needs more than all
// gets them when no other has any.
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
