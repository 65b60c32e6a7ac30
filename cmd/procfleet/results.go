package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

const (
	// shownResults is the maximum number of results listed after a task.
	shownResults = 100
	// shownGood is the maximum task size for which successes are listed, too.
	shownGood = 20
)

// outcome is the end of a task: its results, or the first of them, failures first.
type outcome struct {
	Task    client.Task     `json:"task"`
	Results []client.Result `json:"results"`
	// Up and Down count the processes that a status task found running and not running;
	// nil for other tasks.
	Up   *int `json:"up,omitempty"`
	Down *int `json:"down,omitempty"`
}

// readOutcome reads at most limit results of a finished task, and counts the processes of a
// status task, for which it reads all results. Processes that do not run come before others
// that do.
func readOutcome(ctx context.Context, c *client.Client, task client.Task, limit int) (o outcome, err error) {
	o = outcome{Task: task, Results: []client.Result{}}
	if !queriesStatus(task) {
		if limit == 0 {
			return o, nil
		}
		page, err := c.ResultPage(ctx, task.ID, client.Query{PageSize: limit})
		o.Results = append(o.Results, page.Items...)
		return o, err
	}
	o.Up, o.Down = new(0), new(0)
	var up []client.Result
	for r, err := range c.Results(ctx, task.ID, client.Query{}) {
		switch {
		case err != nil:
			return o, err
		case r.Status != nil && r.Status.Running:
			*o.Up++
			if len(up) < limit {
				up = append(up, r)
			}
			continue
		case r.Status != nil && !r.State.Failure():
			*o.Down++
		}
		if len(o.Results) < limit {
			o.Results = append(o.Results, r)
		}
	}
	o.Results = append(o.Results, up[:min(len(up), limit-len(o.Results))]...)
	return o, nil
}

func (s *serverFlags) writeOutcome(ctx context.Context, out io.Writer, c *client.Client, task client.Task) error {
	o, err := readOutcome(ctx, c, task, task.Items)
	if err != nil {
		return err
	}
	if err := s.writeDocument(out, o); err != nil {
		return err
	}
	return o.verdict()
}

// queriesStatus reports whether all operations of a task are status queries.
func queriesStatus(task client.Task) bool {
	return len(task.Actions) == 1 && task.Actions[0] == procfleet.ActionStatus
}

// verdict returns errHostsFailed if the task failed on some host, and errProcessesDown if
// some process does not run.
func (o *outcome) verdict() error {
	switch {
	case !o.Task.Succeeded():
		return errHostsFailed
	case o.Down != nil && *o.Down > 0:
		return errProcessesDown
	}
	return nil
}

// writeOutcome lists the failures of a finished task and the processes that do not run, and
// everything for a small task. hint has the server flags for the suggested command that
// lists the rest.
func writeOutcome(ctx context.Context, out io.Writer, c *client.Client, hint string, task client.Task) error {
	limit := min(task.Counts.Failed(), shownResults)
	if queriesStatus(task) {
		limit = shownResults
	}
	if task.Items <= shownGood {
		limit = task.Items
	}
	o, err := readOutcome(ctx, c, task, limit)
	if err != nil {
		return err
	}
	if err := writeResults(out, o.Results); err != nil {
		return err
	}
	if o.Up != nil {
		fmt.Fprintf(out, "%d up, %d down\n", *o.Up, *o.Down)
	}
	if shown := len(o.Results); shown < task.Items {
		text := fmt.Sprintf("%d of %d hosts shown", shown, task.Items)
		if shown == 0 {
			text = "no failures"
		}
		fmt.Fprintf(out, "%s; all: procfleet task results %s%s\n", text, task.ID, hint)
	}
	return o.verdict()
}

func writeResults(out io.Writer, results []client.Result) error {
	table := newTable(out)
	for i := range results {
		r := &results[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\n", oneLine(hostText(r)), oneLine(r.Key), r.State, r.Code, oneLine(detail(r)))
		for _, warning := range r.Warnings {
			fmt.Fprintf(table, "\t\t\twarning\t%s\n", oneLine(warning))
		}
	}
	return table.Flush()
}

func hostText(r *client.Result) string {
	if r.Host.IsZero() {
		return r.AgentID
	}
	return r.Host.String()
}

// detail returns the message of a failure, otherwise the status of the process.
func detail(r *client.Result) string {
	if r.State.Failure() || r.Status == nil {
		return r.Message
	}
	text := statusText(r.Status)
	if r.State == procfleet.StateUnchanged {
		text += " (" + r.Message + ")"
	}
	return text
}

func statusText(s *procfleet.ProcessStatus) string {
	text := "down"
	if s.Running {
		text = fmt.Sprintf("up, pid %d", s.PID)
	}
	if s.Supervised {
		text += ", supervised"
	}
	// Both times are from the host's clock, which may differ from the local clock.
	wait := max(s.NextRetryAt.Sub(s.At), 0).Round(time.Second)
	switch {
	case s.Phase == "fatal" && s.NextRetryAt.IsZero():
		text += ", given up after " + failures(s.Failures)
	case s.Phase == "fatal":
		text += fmt.Sprintf(", given up after %s; rare attempt in %v", failures(s.Failures), wait)
	case s.Phase == "backoff":
		text += fmt.Sprintf(", start in %v after %s", wait, failures(s.Failures))
	}
	if left := s.FrozenUntil.Sub(s.At); !s.FrozenUntil.IsZero() && left > 0 {
		text += fmt.Sprintf(", frozen for %v", left.Round(time.Second))
	}
	return text
}

func failures(n int) string {
	if n == 1 {
		return "1 failure"
	}
	return fmt.Sprintf("%d failures", n)
}

func writeTask(out io.Writer, t client.Task) error {
	table := newTable(out)
	fmt.Fprintf(table, "id\t%s\nactions\t%s\n", t.ID, actionsText(t))
	for _, line := range []struct{ name, text string }{
		{"application", t.Application},
		{"business", t.Business},
		{"callback", t.Callback},
		{"state", taskStateText(&t)},
		{"reason", t.RejectReason},
		{"paused", holdText(t.Hold)},
		{"canceled", cancelText(t.Cancel)},
		{"rollout", rolloutText(t.Rollout)},
		{"retry of", string(t.RetryOf)},
		{"undo of", string(t.UndoOf)},
		{"undone by", string(t.UndoneBy)},
		{"retried by", retriesText(&t)},
	} {
		if line.text != "" {
			fmt.Fprintf(table, "%s\t%s\n", line.name, oneLine(line.text))
		}
	}
	fmt.Fprintf(table, "items\t%d\n", t.Items)
	for _, s := range procfleet.States() {
		if n := t.Counts[s]; n > 0 {
			fmt.Fprintf(table, "  %s\t%d\n", s, n)
		}
	}
	fmt.Fprintf(table, "created\t%s\ndeadline\t%s\n", t.CreatedAt.Format(time.RFC3339), t.Deadline.Format(time.RFC3339))
	if t.FinishedAt != nil {
		fmt.Fprintf(table, "finished\t%s (after %v)\n", t.FinishedAt.Format(time.RFC3339), t.FinishedAt.Sub(t.CreatedAt).Round(time.Millisecond))
	}
	return table.Flush()
}

// taskStateText returns the state of a task, and whether the task is paused or canceled.
func taskStateText(t *client.Task) string {
	if t.Hold != nil {
		return string(t.State) + ",paused"
	}
	if t.Cancel != nil {
		return string(t.State) + ",canceled"
	}
	return string(t.State)
}

func holdText(h *client.Hold) string {
	if h == nil {
		return ""
	}
	return sinceText(h.Since, h.Reason)
}

func cancelText(c *client.Cancel) string {
	if c == nil {
		return ""
	}
	return string(c.Mode) + " " + sinceText(c.Since, c.Reason)
}

func retriesText(t *client.Task) string {
	ids := make([]string, len(t.RetriedBy))
	for i, id := range t.RetriedBy {
		ids[i] = string(id)
	}
	return strings.Join(ids, ", ")
}

func sinceText(since time.Time, reason string) string {
	text := "since " + since.Format(time.RFC3339)
	if reason != "" {
		text += ": " + reason
	}
	return text
}

func actionsText(t client.Task) string {
	names := make([]string, len(t.Actions))
	for i, action := range t.Actions {
		names[i] = string(action)
	}
	return strings.Join(names, ",")
}
