package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

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

// eachPage asks for all results of a task from page on and gives them to use
// page by page.
func eachPage(ctx context.Context, client *apiclient.Client, id string, page apiclient.Page, use func([]apiclient.Result) error) error {
	page.Limit = pageSize
	for {
		got, err := client.Results(ctx, id, page)
		if err != nil {
			return err
		}
		if err := use(got.Results); err != nil || got.Next == "" {
			return err
		}
		page.Cursor = got.Next
	}
}

// allResults returns every result of a task from page on.
func allResults(ctx context.Context, client *apiclient.Client, id string, page apiclient.Page) ([]apiclient.Result, error) {
	all := []apiclient.Result{} // an empty list is [] in JSON
	err := eachPage(ctx, client, id, page, func(results []apiclient.Result) error {
		all = append(all, results...)
		return nil
	})
	return all, err
}

// writeTaskJSON writes a task together with all its results.
func writeTaskJSON(ctx context.Context, out io.Writer, client *apiclient.Client, task apiclient.Task) error {
	results, err := allResults(ctx, client, task.ID, apiclient.Page{})
	if err != nil {
		return err
	}
	return writeJSON(out, struct {
		Task    apiclient.Task     `json:"task"`
		Results []apiclient.Result `json:"results"`
	}{task, results})
}

// writeOutcome lists the failures of a finished task, and the other hosts
// too if there are few. The server is for the command that lists the rest.
func writeOutcome(ctx context.Context, out io.Writer, client *apiclient.Client, server string, task apiclient.Task) error {
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
		_, err := fmt.Fprintf(out, "%d of %d hosts shown; all: procfleet task results %s%s\n", wanted, task.Items, task.ID, serverHint(server))
		return err
	}
	return nil
}

func writeResults(out io.Writer, results []apiclient.Result) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i := range results {
		r := &results[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\n", oneLine(hostText(r)), oneLine(r.Key), r.State, r.Code, oneLine(detail(r)))
		for _, warning := range r.Warnings {
			fmt.Fprintf(table, "\t\t\twarning\t%s\n", oneLine(warning))
		}
	}
	return table.Flush()
}

// oneLine makes text fit for a cell of a table: what hosts and callers wrote
// must neither break its lines nor steer the terminal.
func oneLine(text string) string {
	const longest = 240 // characters
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if cut := []rune(text); len(cut) > longest {
		return string(cut[:longest-1]) + "…"
	}
	return text
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
		// By the host's clock, which need not agree with this one.
		wait := max(s.NextRetryAt.Sub(s.At), 0).Round(time.Second)
		text += fmt.Sprintf(", next try in %v after %s", wait, failures(s.Failures))
	}
	return text
}

func failures(n int) string {
	if n == 1 {
		return "1 failure"
	}
	return fmt.Sprintf("%d failures", n)
}

func writeTask(out io.Writer, t apiclient.Task) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "id\t%s\nactions\t%s\nstate\t%s\nitems\t%d\n", t.ID, actionsText(t), t.State, t.Items)
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

func actionsText(t apiclient.Task) string { return strings.Join(t.Actions, ",") }
