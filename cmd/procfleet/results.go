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

func writeTaskJSON(ctx context.Context, out io.Writer, c *client.Client, task client.Task) error {
	results, err := collect(c.Results(ctx, task.ID, client.Query{}))
	if err != nil {
		return err
	}
	return writeJSON(out, struct {
		Task    client.Task     `json:"task"`
		Results []client.Result `json:"results"`
	}{task, results})
}

// writeOutcome lists the failures of a finished task, and the successes of a small
// task. hint has the server flags for the suggested command that lists the rest.
func writeOutcome(ctx context.Context, out io.Writer, c *client.Client, hint string, task client.Task) error {
	wanted := min(task.Counts.Failed(), shownResults)
	if task.Items <= shownGood {
		wanted = task.Items
	}
	if wanted > 0 {
		page, err := c.ResultPage(ctx, task.ID, client.Query{PageSize: wanted})
		if err != nil {
			return err
		}
		if err := writeResults(out, page.Items); err != nil {
			return err
		}
	}
	shown := fmt.Sprintf("%d of %d hosts shown", wanted, task.Items)
	switch wanted {
	case task.Items:
		return nil
	case 0:
		shown = "no failures"
	}
	_, err := fmt.Fprintf(out, "%s; all: procfleet task results %s%s\n", shown, task.ID, hint)
	return err
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
	text := "not running"
	if s.Running {
		text = fmt.Sprintf("running, pid %d", s.PID)
	}
	if s.Supervised {
		text += ", supervised"
	}
	switch s.Phase {
	case "fatal":
		text += ", gave up after " + failures(s.Failures)
	case "backoff":
		// Both times are from the host's clock, which may differ from the local clock.
		wait := max(s.NextRetryAt.Sub(s.At), 0).Round(time.Second)
		text += fmt.Sprintf(", next try in %v after %s", wait, failures(s.Failures))
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
		{"retry of", string(t.RetryOf)},
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
