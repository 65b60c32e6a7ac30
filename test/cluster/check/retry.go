package check

import (
	"context"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// Retry is a confirmed retry of a task that had ended.
type Retry struct {
	Span
	Of, Task procfleet.TaskID
	// Before and After are the results of the retried task before and after the retry.
	Before, After []client.Result
	Items         []client.Result // of the retry
}

// runsNothing reports whether a submission runs no command on any host, so that a retry does not
// change what marks prove.
func (s *Submission) runsNothing() bool {
	return !slices.ContainsFunc(s.Operations, func(a Operation) bool { return a.Action != procfleet.ActionStatus })
}

// retry retries a task once it has ended, if some of its items can be repeated. working limits the
// repeats.
func (l *Load) retry(working context.Context, c *client.Client, id procfleet.TaskID) {
	for {
		task, err := c.Task(working, id)
		if err == nil && task.Done() {
			break
		}
		if rest(working, l.cfg.Between) != nil {
			return
		}
	}
	r := Retry{Of: id}
	var err error
	if r.Before, err = resultsOf(working, c, id); err != nil || !slices.ContainsFunc(r.Before, repeatable) {
		return
	}
	r.From = time.Now()
	retry, err := c.RetryTask(working, id, client.TaskRetry{})
	r.Until, r.Task = time.Now(), retry.ID
	if err == nil {
		r.After, err = resultsOf(working, c, id)
	}
	if err == nil {
		r.Items, err = resultsOf(working, c, r.Task)
	}
	if err != nil {
		l.cfg.Log("retry of task %s: %v", id, err)
		return
	}
	l.log.edit(func(h *History) { h.Retries = append(h.Retries, r) })
}

func resultsOf(ctx context.Context, c *client.Client, id procfleet.TaskID) (results []client.Result, err error) {
	for r, err := range c.Results(ctx, id, client.Query{}) {
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

// repeatable reports whether a retry repeats an item by default.
func repeatable(r client.Result) bool {
	switch r.State {
	case procfleet.StateFailed, procfleet.StateUnreachable, procfleet.StateTimedOut, procfleet.StateCancelled:
		return true
	case procfleet.StatePending, procfleet.StateDelivered, procfleet.StateSucceeded, procfleet.StateUnchanged, procfleet.StateRejected:
	}
	return false
}

// linked checks that tasks and their retries name each other, and which items retries have.
func (j *judge) linked() {
	listed := map[procfleet.TaskID]*client.Task{}
	for i := range j.h.Tasks {
		listed[j.h.Tasks[i].ID] = &j.h.Tasks[i]
	}
	for _, of := range j.h.Tasks {
		for _, id := range of.RetriedBy {
			if retry := listed[id]; retry == nil || retry.RetryOf != of.ID {
				j.broken(RuleLinked, of.ID, "it names the retry %s, which does not name it", id)
			}
		}
	}
	for i := range j.h.Retries {
		r := &j.h.Retries[i]
		if slices.ContainsFunc(j.h.Failovers, func(f Span) bool { return f.Until.After(r.From) }) {
			continue
		}
		if of := listed[r.Of]; of == nil || !slices.Contains(of.RetriedBy, r.Task) {
			j.broken(RuleLinked, r.Of, "it does not name its retry %s", r.Task)
		}
		j.repeats(r)
	}
}

// repeats checks the items of a retry. A late result may end that an item can be repeated.
func (j *judge) repeats(r *Retry) {
	type item struct {
		host   procfleet.Host
		name   string
		action procfleet.Action
	}
	of := func(r *client.Result) item { return item{r.Host, r.Name, r.Action} }
	can := map[item]int{} // in how many of the two readings
	for _, results := range [][]client.Result{r.Before, r.After} {
		for i := range results {
			if repeatable(results[i]) {
				can[of(&results[i])]++
			}
		}
	}
	has := map[item]bool{}
	for i := range r.Items {
		it := of(&r.Items[i])
		if has[it] || can[it] == 0 {
			j.brokenItem(RuleLinked, r.Task, r.Items[i].Item, it.host, "%s of %s is not an item that the retry of task %s was to repeat once", it.action, it.name, r.Of)
		}
		has[it] = true
	}
	for it, readings := range can {
		if readings == 2 && !has[it] {
			j.brokenItem(RuleLinked, r.Task, -1, it.host, "%s of %s is missing in the retry of task %s", it.action, it.name, r.Of)
		}
	}
}
