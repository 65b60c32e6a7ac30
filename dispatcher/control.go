package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

// controllableTask authorizes the control of a task: the caller must be permitted to do
// its actions in its business.
func (e *exchange) controllableTask(ctx context.Context, q *dialect.TaskControl) (*procfleet.Task, error) {
	task, err := e.readableTask(ctx, &q.Task)
	if err != nil {
		return nil, err
	}
	actions := make([]string, len(task.Actions))
	for i, action := range task.Actions {
		actions[i] = string(action)
	}
	if q.Transition == dialect.ApproveTask {
		actions = []string{apps.Approval}
	}
	return task, e.who.May(task.Business, actions...)
}

// controlTask pauses, resumes or cancels a task. The transition is stored when it returns; workers
// and watchers are notified without waiting for them. A retry may also be planned only.
func (e *exchange) controlTask(ctx context.Context, q *dialect.TaskControl, task *procfleet.Task) (dialect.Controlled, error) {
	if q.Planned {
		plan, err := e.planRetry(ctx, q, task)
		return dialect.Controlled{Plan: plan}, controlError(q, task, err)
	}
	record := audit.Record{Change: string(q.Transition) + " task", Task: task.ID, Business: task.Business, Actions: task.Actions, Reason: q.Reason}
	for i := range q.Hosts {
		record.AddTarget(&procfleet.Target{Host: q.Hosts[i]})
	}
	if err := e.auditChange(ctx, record); err != nil {
		return dialect.Controlled{}, err
	}
	transition := map[dialect.Transition]func(context.Context, *dialect.TaskControl) (procfleet.Task, error){
		dialect.PauseTask: e.pauseTask, dialect.CancelTask: e.cancelTask,
		dialect.ResumeTask: func(ctx context.Context, q *dialect.TaskControl) (procfleet.Task, error) {
			return e.resumeTask(ctx, q, task)
		},
		dialect.ApproveTask: func(ctx context.Context, q *dialect.TaskControl) (procfleet.Task, error) {
			return e.approveTask(ctx, q, task)
		},
		dialect.RetryTask: func(ctx context.Context, q *dialect.TaskControl) (procfleet.Task, error) {
			return e.retryTask(ctx, q, task)
		},
		dialect.UndoTask: func(ctx context.Context, q *dialect.TaskControl) (procfleet.Task, error) {
			return e.undoTask(ctx, q, task)
		},
	}
	controlled, err := transition[q.Transition](ctx, q)
	if err != nil {
		return dialect.Controlled{}, controlError(q, &controlled, err)
	}
	if hints := e.api.cfg.Hints; hints != nil {
		_ = hints.Hint(q.Task, false) // watchers also poll
	}
	return dialect.Controlled{Task: &controlled}, nil
}

// controlError returns the error for the caller of a control that the task's present state
// refuses, or that failed.
func controlError(q *dialect.TaskControl, task *procfleet.Task, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, taskstore.ErrSeq):
		return &dialect.Error{
			Kind: dialect.Conflict, Field: "if_seq", Task: q.Task,
			Problem: fmt.Sprintf("is %d, but the task has seq %d: read the task again", *q.IfSeq, task.Seq),
		}
	case errors.Is(err, taskstore.ErrDone):
		return &dialect.Error{Kind: dialect.Conflict, Task: q.Task, Problem: fmt.Sprintf("the task is %s: only an open task can be controlled", task.State)}
	}
	return about(q.Task, err)
}

func (e *exchange) pauseTask(ctx context.Context, q *dialect.TaskControl) (procfleet.Task, error) {
	task, err := e.api.store.Pause(ctx, q.Task, q.Reason, seqOf(q))
	if hints := e.api.cfg.Hints; err == nil && hints != nil {
		_ = hints.Hold(q.Task) // workers also read the store
	}
	return task, err
}

// resumeTask ends a hold of a task and makes its next visit due, in which the sweep publishes the
// chunks that workers dropped, or releases further hosts. If setting the visit fails, the task's
// regular visit does.
func (e *exchange) resumeTask(ctx context.Context, q *dialect.TaskControl, task *procfleet.Task) (procfleet.Task, error) {
	if q.Hold != procfleet.HoldOperator {
		return e.endRolloutHold(ctx, q, task)
	}
	if r := task.Rollout; r != nil && !task.Held() && r.Hold.Kind != "" {
		if r.Hold.Kind == procfleet.HoldApproval {
			return *task, conflict(q, "the task is not paused: stage %d of its rollout waits for an approval", r.Stage+1)
		}
		if r.Hold.Kind == procfleet.HoldWindow {
			return *task, conflict(q, "the task is not paused: its rollout goes on when its maintenance window opens (%s)", r.Hold.Reason)
		}
		return *task, conflict(q, "the task is not paused: its rollout has the hold %s; name it as hold to end it", r.Hold.Kind)
	}
	resumed, err := e.api.store.Resume(ctx, q.Task, seqOf(q))
	if err == nil {
		e.visitSoon(ctx, q.Task)
	}
	return resumed, err
}

// approveTask approves the stage of a rollout that has ended.
func (e *exchange) approveTask(ctx context.Context, q *dialect.TaskControl, task *procfleet.Task) (procfleet.Task, error) {
	switch r := task.Rollout; {
	case r == nil:
		return *task, conflict(q, "the task has no rollout")
	case r.Hold.Kind != "" && r.Hold.Kind != procfleet.HoldApproval:
		return *task, conflict(q, "stage %d does not wait for an approval: the rollout has the hold %s", q.Stage, r.Hold.Kind)
	case r.Hold.Kind == "" || r.Stage+1 != q.Stage:
		return *task, conflict(q, "stage %d does not wait for an approval: the current stage is %d of %d, phase %s", q.Stage, r.Stage+1, len(r.Plan.Stages), r.Phase)
	}
	if q.IfSeq == nil {
		q.IfSeq = &task.Seq // approves this stage, and no later one
	}
	q.Hold = procfleet.HoldApproval
	return e.endRolloutHold(ctx, q, task)
}

func (e *exchange) endRolloutHold(ctx context.Context, q *dialect.TaskControl, task *procfleet.Task) (procfleet.Task, error) {
	if task.Rollout == nil {
		return *task, conflict(q, "the task has no rollout")
	}
	failures := q.MaxFailures.Of(task.Rollout.Plan.Units())
	changed, err := e.api.store.EndHold(ctx, q.Task, q.Hold, failures, seqOf(q))
	if errors.Is(err, taskstore.ErrFailures) {
		return changed, &dialect.Error{
			Kind: dialect.InvalidField, Field: "max_failures", Task: q.Task,
			Problem: fmt.Sprintf("is %d of %d hosts, but %d have failed already: tolerate at least as many", failures, task.Rollout.Plan.Units(), changed.Rollout.Failed),
		}
	}
	if err == nil {
		e.visitSoon(ctx, q.Task)
	}
	return changed, err
}

func conflict(q *dialect.TaskControl, format string, args ...any) error {
	return &dialect.Error{Kind: dialect.Conflict, Task: q.Task, Problem: fmt.Sprintf(format, args...)}
}

// cancelTask cancels a task and publishes the chunks that were begun. It makes the next visit
// of the task due: the sweep publishes chunks if that failed here, and notifies the end of a
// task that has no open items.
func (e *exchange) cancelTask(ctx context.Context, q *dialect.TaskControl) (procfleet.Task, error) {
	if len(q.Hosts) > 0 {
		return e.cancelHosts(ctx, q)
	}
	task, err := e.api.store.Cancel(ctx, q.Task, q.Mode, q.Reason, seqOf(q))
	if err != nil {
		return task, err
	}
	if hints := e.api.cfg.Hints; hints != nil {
		_ = hints.Hold(q.Task) // workers also read the store
	}
	if err := e.api.submitter.cancelChunks(ctx, &task); err != nil {
		e.log().WithError(err).WithField("task", q.Task).Warn("canceled chunks not queued, left to the sweep")
	}
	e.visitSoon(ctx, q.Task)
	return task, nil
}

// cancelChunks publishes the chunks of a canceled task that have open items. They use the lane of
// small tasks, so that a cancel does not wait behind the task's own chunks.
func (s *submitter) cancelChunks(ctx context.Context, task *procfleet.Task) error {
	undone, err := s.store.Undone(ctx, task.ID)
	if err != nil {
		return err
	}
	var refs []bus.ChunkRef
	for _, chunk := range undone {
		items, err := s.store.Chunk(ctx, task.ID, chunk.Chunk)
		if err != nil {
			return err
		}
		open := slices.IndexFunc(items, func(it procfleet.ItemResult) bool { return !it.State.Final() })
		if open >= 0 {
			refs = append(refs, bus.ChunkRef{Task: task.ID, Chunk: chunk.Chunk, Lane: procfleet.LaneSmall, Cloud: items[open].Item.Target.Host.Cloud})
		}
	}
	sequences, err := s.queue.PublishChunks(ctx, refs, bus.CancelRound(task))
	if err != nil {
		return err
	}
	for i, sequence := range sequences {
		if err := s.store.Republished(ctx, task.ID, refs[i].Chunk, sequence); err != nil {
			return err
		}
	}
	return nil
}

// cancelHosts cancels the items of some hosts and queues that for workers. The sweep queues what
// was not queued here.
func (e *exchange) cancelHosts(ctx context.Context, q *dialect.TaskControl) (procfleet.Task, error) {
	task, err := e.api.store.Task(ctx, q.Task)
	if err != nil {
		return task, err
	}
	items, refs, err := e.itemsOn(ctx, &task, q.Hosts)
	if err != nil {
		return task, err
	}
	task, err = e.api.store.CancelItems(ctx, q.Task, items, q.Mode, q.Reason, seqOf(q))
	if err != nil {
		return task, err
	}
	if hints := e.api.cfg.Hints; hints != nil {
		_ = hints.Hold(q.Task) // workers also read the store
	}
	if _, err := e.api.submitter.queue.PublishChunks(ctx, refs, bus.CancelRound(&task)); err != nil {
		e.log().WithError(err).WithField("task", q.Task).Warn("canceled chunks not queued, left to the sweep")
	}
	e.visitSoon(ctx, q.Task)
	return task, nil
}

// itemsOn returns the items of a task on hosts, by chunk, and the references with which their
// cancels are queued.
func (e *exchange) itemsOn(ctx context.Context, task *procfleet.Task, hosts []procfleet.Host) (items []taskstore.ChunkItems, refs []bus.ChunkRef, err error) {
	found := map[procfleet.Host]bool{}
	for chunk := range task.Chunks {
		all, err := e.api.store.Chunk(ctx, task.ID, chunk)
		if err != nil {
			return nil, nil, err
		}
		of := taskstore.ChunkItems{Chunk: chunk}
		for i := range all {
			if host := all[i].Item.Target.Host; slices.Contains(hosts, host) {
				found[host] = true
				of.Items = append(of.Items, i)
			}
		}
		if len(of.Items) > 0 {
			items = append(items, of)
			refs = append(refs, bus.ChunkRef{Task: task.ID, Chunk: chunk, Lane: procfleet.LaneSmall, Cloud: all[of.Items[0]].Item.Target.Host.Cloud, Cancels: true})
		}
	}
	for _, host := range hosts {
		if !found[host] {
			return nil, nil, &dialect.Error{Kind: dialect.InvalidField, Field: "hosts", Task: task.ID, Problem: fmt.Sprintf("contains %s, on which the task has no item", host)}
		}
	}
	return items, refs, nil
}

func (e *exchange) visitSoon(ctx context.Context, id procfleet.TaskID) {
	if err := e.api.store.Revisit(ctx, taskstore.NextVisit{Task: id}); err != nil {
		e.log().WithError(err).WithField("task", id).Warn("task not scheduled, next regular visit follows")
	}
}

func seqOf(q *dialect.TaskControl) int {
	if q.IfSeq == nil {
		return taskstore.AnySeq
	}
	return *q.IfSeq
}
