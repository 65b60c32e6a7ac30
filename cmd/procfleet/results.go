package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/apiclient"
)

const (
	// shownResults is how many results are listed after a task; the rest is
	// one command away.
	shownResults = 100
	// shownGood is up to how many hosts those without a failure are listed.
	shownGood = 20
	pageSize  = 1000
)

func writeJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// writeTaskJSON writes a task together with all its results.
func writeTaskJSON(ctx context.Context, out io.Writer, client *apiclient.Client, task apiclient.Task) error {
	document := struct {
		Task    apiclient.Task     `json:"task"`
		Results []apiclient.Result `json:"results"`
	}{Task: task, Results: []apiclient.Result{}}
	page := apiclient.Page{Limit: pageSize}
	for {
		got, err := client.Results(ctx, task.ID, page)
		if err != nil {
			return err
		}
		document.Results = append(document.Results, got.Results...)
		if got.Next == "" {
			return writeJSON(out, document)
		}
		page.Cursor = got.Next
	}
}

// writeOutcome lists the failures of a finished task, and the other hosts
// too if there are few.
func writeOutcome(ctx context.Context, out io.Writer, client *apiclient.Client, task apiclient.Task) error {
	wanted := min(task.Counts.Failed(), shownResults)
	if task.Items <= shownGood {
		wanted = task.Items
	}
	if wanted > 0 {
		page, err := client.Results(ctx, task.ID, apiclient.Page{Limit: wanted})
		if err != nil {
			return err
		}
		if err := writeResults(out, page.Results); err != nil {
			return err
		}
	}
	if wanted < task.Items {
		_, err := fmt.Fprintf(out, "%d of %d hosts shown; all: procfleet task results %s\n", wanted, task.Items, task.ID)
		return err
	}
	return nil
}

func writeResults(out io.Writer, results []apiclient.Result) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i := range results {
		r := &results[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\n", hostText(r), r.Key, r.State, r.Code, detail(r))
		for _, warning := range r.Warnings {
			fmt.Fprintf(table, "\t\t\twarning\t%s\n", warning)
		}
	}
	return table.Flush()
}

func hostText(r *apiclient.Result) string {
	if r.Host == "" {
		return r.AgentID
	}
	return r.Host
}

// detail says what an operator wants to know: what was wrong, or how the
// process is.
func detail(r *apiclient.Result) string {
	if r.State.Failure() || r.Status == nil {
		return r.Message
	}
	text := "not running"
	if r.Status.Running {
		text = fmt.Sprintf("running, pid %d", r.Status.PID)
	}
	if r.Status.Supervised {
		text += ", supervised"
	}
	if r.State == procfleet.StateUnchanged {
		text += " (" + r.Message + ")"
	}
	return text
}

func writeTask(out io.Writer, t apiclient.Task) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "id\t%s\nstate\t%s\nhosts\t%d\n", t.ID, t.State, t.Items)
	for _, s := range procfleet.States() {
		if n := t.Counts[s]; n > 0 {
			fmt.Fprintf(table, "  %s\t%d\n", s, n)
		}
	}
	fmt.Fprintf(table, "created\t%s\ndeadline\t%s\n", t.CreatedAt.Format(time.RFC3339), t.Deadline.Format(time.RFC3339))
	if !t.FinishedAt.IsZero() {
		fmt.Fprintf(table, "finished\t%s (after %v)\n", t.FinishedAt.Format(time.RFC3339), t.FinishedAt.Sub(t.CreatedAt).Round(time.Millisecond))
	}
	return table.Flush()
}
