package sweep

import (
	"context"
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/storecall"
)

// plan has the actions of one round.
type plan struct {
	complete map[procfleet.TaskID]bool // tasks without lost results
	next     []taskstore.NextVisit
	settle   []taskstore.Visit
	notify   []procfleet.TaskID
	repairs  []*repair
}

// visit plans the actions for due tasks and executes them: at most three reads and one
// write for all tasks together. It starts repairs without waiting for them.
func (sh *shard) visit(ctx context.Context, due []taskstore.Visit) error {
	if len(due) == 0 {
		return nil
	}
	ids := make([]procfleet.TaskID, len(due))
	for i := range due {
		ids[i] = due[i].Task
	}
	tasks, err := storecall.ReadTasks(ctx, sh.cfg.Store, sh.cfg.Log, ids)
	if err != nil {
		return err
	}
	p := plan{complete: sh.complete(ctx, tasks)}
	for i := range due {
		sh.decideSafely(&p, due[i], &tasks[i])
	}
	sh.cfg.Metrics.Visits.Add(ctx, int64(len(due)))
	return sh.carryOut(ctx, &p)
}

// carryOut stores the next visits first and then starts the repairs: the next visit
// restarts an interrupted repair.
func (sh *shard) carryOut(ctx context.Context, p *plan) error {
	err := sh.cfg.Store.Revisit(ctx, p.next...)
	if err == nil {
		err = sh.settle(ctx, p.settle...)
	}
	if err != nil {
		for _, r := range p.repairs {
			sh.finish(r)
		}
		return fmt.Errorf("set the next visits: %w", err)
	}
	for _, id := range p.notify {
		sh.cfg.Notifier.Soon(id)
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
		sh.stepped.Forget(v.Task)
	}
	return sh.cfg.Store.Settle(ctx, visits...)
}

// decideSafely calls decide. If that panics, it postpones the task's visit.
func (sh *shard) decideSafely(p *plan, visit taskstore.Visit, task *procfleet.Task) {
	defer func() {
		if r := recover(); r != nil {
			sh.cfg.Log.WithField("panic", r).WithField("task", visit.Task).Error("task visit panicked, retrying later")
			p.later(visit.Task, sh.cfg.Timing.RevisitMax)
		}
	}()
	sh.decide(p, visit, task)
}

func (p *plan) later(id procfleet.TaskID, after time.Duration) {
	p.next = append(p.next, taskstore.NextVisit{Task: id, After: storecall.Jitter(after)})
}

// decide adds the actions for one task to the plan.
func (sh *shard) decide(p *plan, visit taskstore.Visit, task *procfleet.Task) {
	id := visit.Task
	switch {
	case task.ID == "":
		sh.decideAbsent(p, visit)
		return
	case task.State == "": // the task is unreadable, see storecall.ReadTasks
		p.later(id, sh.cfg.Timing.RevisitMax)
		return
	case task.State.Done():
		sh.decideDone(p, visit, task)
		return
	}
	if task.Transitions > task.TransitionsSent {
		p.notify = append(p.notify, id)
	}
	now := sh.cfg.Clock.Now()
	deadline := sh.deadline(task, now)
	if late := now.Sub(deadline); late > 0 {
		sh.cfg.Metrics.Sweeps.Overdue(sh.number, late)
		p.later(id, sh.cfg.Timing.RevisitMin)
		if r := sh.begin(task, now, true); r != nil {
			r.do = func(ctx context.Context) error { return sh.giveUp(ctx, r, late) }
			p.repairs = append(p.repairs, r)
		}
		return
	}
	if task.Rollout != nil {
		sh.visitRollout(p, task, now)
		return
	}
	age := ageOf(task, now)
	next := min(max(age/4, sh.cfg.Timing.RevisitMin), sh.cfg.Timing.RevisitMax)
	if sh.needsRepair(task, age, now, p.complete[task.ID]) {
		if r := sh.begin(task, now, false); r != nil {
			r.do = func(ctx context.Context) error { return sh.reconcile(ctx, r, age) }
			p.repairs = append(p.repairs, r)
		} else {
			next = sh.cfg.Timing.RevisitMin
		}
	}
	// Revisit right after the deadline at the latest, so that the task ends promptly.
	p.later(id, min(next, deadline.Sub(now)+time.Millisecond))
}

// deadline returns when the sweep ends items of a task. If the task is held and agents
// have no item of it, that is the hold limit.
func (sh *shard) deadline(task *procfleet.Task, now time.Time) time.Time {
	deadline := sh.stepped.Deadline(task, now)
	if task.Held() && task.Counts[procfleet.StateDelivered] == 0 {
		deadline = deadline.Add(task.HoldLimit().Sub(task.Deadline))
	}
	return deadline
}

// decideAbsent handles an index entry without a task: the task has expired, its dispatcher
// died before writing it, or its dispatcher is about to write it. A task number contains
// the time of creation; a time far in the future means that the store's clock was ahead.
func (sh *shard) decideAbsent(p *plan, visit taskstore.Visit) {
	number, err := visit.Task.Number()
	if err == nil && sh.cfg.Clock.Now().Sub(number.Time()).Abs() < sh.cfg.Timing.AbsentAge {
		p.later(visit.Task, sh.cfg.Timing.RevisitMin)
		return
	}
	sh.cfg.Metrics.SweepActions.Add(1, metrics.SweepForget)
	p.settle = append(p.settle, visit)
}

// decideDone queues a pending notification and does not wait, as callbacks are slow. The
// notifier also records the end of a rejected task, and settles it.
func (sh *shard) decideDone(p *plan, visit taskstore.Visit, task *procfleet.Task) {
	if task.State == procfleet.TaskRejected {
		p.later(task.ID, sh.cfg.Timing.RevisitMin)
		p.notify = append(p.notify, task.ID)
		return
	}
	if !task.NotifyPending {
		p.settle = append(p.settle, visit)
		return
	}
	sh.cfg.Metrics.SweepActions.Add(1, metrics.SweepNotify)
	p.later(task.ID, sh.cfg.Notifier.CallbackPause(task))
	p.notify = append(p.notify, task.ID)
}
