package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// plan is what a round does about the tasks it visits.
type plan struct {
	complete map[procfleet.TaskID]bool // tasks that miss no result
	next     []taskstore.NextVisit
	settle   []taskstore.Visit
	notify   []procfleet.TaskID
	repairs  []*repair
}

// visit does what due tasks need now and sets their next visits: up to three
// reads and one write for all of them. Repairs are started and not waited for.
func (sh *shard) visit(ctx context.Context, due []taskstore.Visit) error {
	if len(due) == 0 {
		return nil
	}
	ids := make([]procfleet.TaskID, len(due))
	for i := range due {
		ids[i] = due[i].Task
	}
	tasks, err := readTasks(ctx, sh.store, sh.log, ids)
	if err != nil {
		return err
	}
	p := plan{complete: sh.complete(ctx, tasks)}
	for i := range due {
		sh.decideSafely(ctx, &p, due[i], &tasks[i])
	}
	sh.metrics.visits.Add(ctx, int64(len(due)))
	return sh.carryOut(ctx, &p)
}

// carryOut stores what a plan says, and then starts what waits: a repair that
// is interrupted is begun again at the visit that was set before.
func (sh *shard) carryOut(ctx context.Context, p *plan) error {
	err := sh.store.Revisit(ctx, p.next...)
	if err == nil {
		err = sh.settle(ctx, p.settle...)
	}
	if err != nil {
		for _, r := range p.repairs {
			sh.over(r)
		}
		return fmt.Errorf("set the next visits: %w", err)
	}
	for _, id := range p.notify {
		sh.notifier.soon(id)
	}
	for _, r := range p.repairs {
		sh.running.Go(func() { sh.run(ctx, r) })
	}
	return nil
}

func (sh *shard) settle(ctx context.Context, visits ...taskstore.Visit) error {
	if len(visits) == 0 {
		return nil
	}
	for _, v := range visits {
		sh.stepped.forget(v.Task)
	}
	return sh.store.Settle(ctx, visits...)
}

// decideSafely turns a panic over one task into a postponed visit.
func (sh *shard) decideSafely(ctx context.Context, p *plan, visit taskstore.Visit, task *procfleet.Task) {
	defer func() {
		if r := recover(); r != nil {
			sh.log.WithField("panic", r).WithField("task", visit.Task).Error("visit failed, postponed")
			p.later(visit.Task, sh.timing.Sweep.RevisitMax)
		}
	}()
	sh.decide(ctx, p, visit, task)
}

func (p *plan) later(id procfleet.TaskID, after time.Duration) {
	p.next = append(p.next, taskstore.NextVisit{Task: id, After: jitter(after)})
}

// decide plans what one task needs.
func (sh *shard) decide(ctx context.Context, p *plan, visit taskstore.Visit, task *procfleet.Task) {
	id := visit.Task
	switch {
	case task.ID == "":
		sh.decideAbsent(ctx, p, visit)
		return
	case task.State == "": // unreadable
		p.later(id, sh.timing.Sweep.RevisitMax)
		return
	case task.State.Done():
		sh.decideDone(ctx, p, visit, task)
		return
	}
	now := sh.clock.now()
	deadline := sh.stepped.deadline(task, now)
	if late := now.Sub(deadline); late > 0 {
		sh.metrics.sweeps.overdue(sh.number, late)
		p.later(id, sh.timing.Sweep.RevisitMin)
		if r := sh.begin(task, now, true); r != nil {
			r.do = func(ctx context.Context) error { return sh.giveUp(ctx, r, late) }
			p.repairs = append(p.repairs, r)
		}
		return
	}
	age := ageOf(task, now)
	next := min(max(age/4, sh.timing.Sweep.RevisitMin), sh.timing.Sweep.RevisitMax)
	if sh.needsRepair(task, age, now, p.complete[task.ID]) {
		if r := sh.begin(task, now, false); r != nil {
			r.do = func(ctx context.Context) error { return sh.reconcile(ctx, r, age) }
			p.repairs = append(p.repairs, r)
		} else {
			next = sh.timing.Sweep.RevisitMin
		}
	}
	// Bounded by the deadline, so that an overdue task ends at once.
	p.later(id, min(next, deadline.Sub(now)+time.Millisecond))
}

// decideAbsent handles an index entry without a task: it expired, or its
// dispatcher died before writing it, or is just about to. A number far in the
// future is of a time when the store's clock was ahead.
func (sh *shard) decideAbsent(ctx context.Context, p *plan, visit taskstore.Visit) {
	number, err := visit.Task.Number()
	if err == nil && sh.clock.now().Sub(number.Time()).Abs() < sh.timing.Sweep.GhostAge {
		p.later(visit.Task, sh.timing.Sweep.RevisitMin)
		return
	}
	sh.metrics.sweep(ctx, sweepForget, 1)
	p.settle = append(p.settle, visit)
}

// decideDone has a pending completion notification sent. It does not wait for
// that: callbacks are slow.
func (sh *shard) decideDone(ctx context.Context, p *plan, visit taskstore.Visit, task *procfleet.Task) {
	if task.State != procfleet.TaskFinished || !task.NotifyPending {
		p.settle = append(p.settle, visit)
		return
	}
	sh.metrics.sweep(ctx, sweepNotify, 1)
	p.later(task.ID, sh.notifier.callbackPause(task))
	p.notify = append(p.notify, task.ID)
}
