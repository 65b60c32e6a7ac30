package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

// retryTask creates a task from items of another task and their stored specs. Registrations
// stay as they are. The idempotency key contains the number of the retry: if the dispatcher
// dies before it has linked the tasks, a repeated request finds the new task and links it.
func (e *exchange) retryTask(ctx context.Context, q *dialect.TaskControl, task *procfleet.Task) (procfleet.Task, error) {
	sub, err := e.retrySubmission(ctx, q, task)
	if err != nil {
		return *task, err
	}
	sub.Override = e.r.Header.Get(overrideHeader)
	if err := checkOverride(sub.Override); err != nil {
		return *task, err
	}
	hash, err := retryHash(q)
	if err != nil {
		return *task, err
	}
	retry, err := e.submit(ctx, sub, terms{
		key: fmt.Sprintf("\x00retry/%s/%d", task.ID, len(task.RetriedBy)+1), hash: hash, retryOf: task.ID, unregistered: true,
	})
	if err != nil {
		return retry, err
	}
	e.api.cfg.Reached(PointRetried)
	if _, err := e.api.store.Retried(ctx, task.ID, retry.ID); err != nil {
		return retry, fmt.Errorf("link retry %s: %w", retry.ID, err)
	}
	return retry, nil
}

// planRetry returns the plan of a retry, with the later tasks that operated the same
// processes on the same hosts.
func (e *exchange) planRetry(ctx context.Context, q *dialect.TaskControl, task *procfleet.Task) (*v1.Plan, error) {
	sub, err := e.retrySubmission(ctx, q, task)
	if err != nil {
		return nil, err
	}
	plan, err := e.api.plan(ctx, sub)
	if err != nil {
		return nil, err
	}
	return plan, e.api.addNewerTasks(ctx, plan, task)
}

// retrySubmission returns the operations that a retry repeats.
func (e *exchange) retrySubmission(ctx context.Context, q *dialect.TaskControl, task *procfleet.Task) (*procfleet.Submission, error) {
	if q.IfSeq != nil && *q.IfSeq != task.Seq {
		return nil, taskstore.ErrSeq
	}
	sub := procfleet.Submission{Business: task.Business}
	found := map[procfleet.Host]bool{}
	for chunk := range task.Chunks {
		items, err := e.api.store.Chunk(ctx, task.ID, chunk)
		if err != nil {
			return nil, err
		}
		sub.Operations = append(sub.Operations, retried(items, q, found)...)
	}
	for _, host := range q.Hosts {
		if !found[host] {
			return nil, &dialect.Error{Kind: dialect.InvalidField, Field: "hosts", Task: q.Task, Problem: fmt.Sprintf("contains %s, on which the task has no item in the states %v", host, q.States)}
		}
	}
	if len(sub.Operations) == 0 {
		return nil, &dialect.Error{Kind: dialect.Conflict, Task: q.Task, Problem: fmt.Sprintf("the task has no item in the states %v", q.States)}
	}
	return &sub, nil
}

// retried returns the operations that repeat items, one for each run of items with the same
// action and spec. It adds their hosts to found.
func retried(items []procfleet.ItemResult, q *dialect.TaskControl, found map[procfleet.Host]bool) (operations []procfleet.Operation) {
	var spec *procfleet.ProcessSpec
	for i := range items {
		it := &items[i]
		if host := it.Item.Target.Host; !slices.Contains(q.States, it.State) || len(q.Hosts) > 0 && !slices.Contains(q.Hosts, host) {
			continue
		}
		found[it.Item.Target.Host] = true
		if last := len(operations) - 1; last < 0 || spec != it.Spec || operations[last].Action != it.Item.Action {
			operations = append(operations, procfleet.Operation{Action: it.Item.Action, Process: *it.Spec})
			spec = it.Spec
		}
		last := &operations[len(operations)-1]
		last.Targets = append(last.Targets, it.Item.Target)
	}
	return operations
}

// retryHash distinguishes a repeat of a retry from another one with the same number.
func retryHash(q *dialect.TaskControl) (string, error) {
	text, err := json.Marshal(struct {
		States []procfleet.State
		Hosts  []procfleet.Host
	}{q.States, q.Hosts})
	if err != nil {
		return "", fmt.Errorf("encode the retry: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
