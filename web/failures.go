package web

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// failureGroup is a number of failed items with the same cause.
type failureGroup struct {
	State   procfleet.State
	Code    procfleet.Code
	Message string // of one of the items
	Items   int
	Hosts   []procfleet.Host // at most hostsShown
}

// failures are the failed items of a task, grouped by their cause.
type failures struct {
	Groups []failureGroup // the largest first
	More   bool           // the task has further failed items, or groups
	number int            // of failed items
}

const (
	hostsShown   = 20   // maximum number of hosts that a group lists
	failuresRead = 2000 // maximum number of failed items that are grouped
	groupsShown  = 20
)

// numbers are the parts of messages that differ between hosts with the same cause: process ids,
// durations, addresses and times, but not exit codes.
var numbers = regexp.MustCompile(`(exit=)?[0-9]+`)

// causeOf returns the message without these parts.
func causeOf(message string) string {
	return numbers.ReplaceAllStringFunc(message, func(n string) string {
		if strings.HasPrefix(n, "exit=") {
			return n
		}
		return "#"
	})
}

// groupFailures groups the failed items of a task.
func groupFailures(ctx context.Context, api *client.Client, t *client.Task) (*failures, error) {
	type cause struct {
		state procfleet.State
		code  procfleet.Code
		text  string
	}
	byCause := make(map[cause]*failureGroup)
	read := 0
	q := client.Query{PageSize: 1000}
	for read < failuresRead {
		page, err := api.ResultPage(ctx, t.ID, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			r := &page.Items[i]
			if !r.State.Failure() {
				page.Next = "" // failures are first
				break
			}
			read++
			key := cause{r.State, r.Code, causeOf(r.Message)}
			g := byCause[key]
			if g == nil {
				g = &failureGroup{State: r.State, Code: r.Code, Message: r.Message}
				byCause[key] = g
			}
			g.Items++
			if len(g.Hosts) < hostsShown && !slices.Contains(g.Hosts, r.Host) {
				g.Hosts = append(g.Hosts, r.Host)
			}
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
	}
	f := &failures{number: t.Counts.Failed()}
	for _, g := range byCause {
		f.Groups = append(f.Groups, *g)
	}
	slices.SortFunc(f.Groups, func(a, b failureGroup) int {
		return cmp.Or(cmp.Compare(b.Items, a.Items), cmp.Compare(a.Message, b.Message), cmp.Compare(a.State, b.State))
	})
	f.More = len(f.Groups) > groupsShown || read < f.number
	f.Groups = f.Groups[:min(len(f.Groups), groupsShown)]
	return f, nil
}
