package web

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// mayNot reports whether the API has refused a call because of the viewer's permissions.
func mayNot(err error) bool { return statusOf(err) == http.StatusForbidden }

// eventsView is the content of the page of the events of hosts.
type eventsView struct {
	Host, Namespace, Kind string
	Events                []procfleet.HostEvent // newest first
}

func listEvents(ctx context.Context, v *visit) (any, error) {
	view := eventsView{Host: v.query("host"), Namespace: v.query("namespace"), Kind: v.query("kind")}
	host, err := v.host("host")
	if err != nil {
		return nil, err
	}
	page, err := v.api.EventPage(ctx, client.EventQuery{Host: host, Namespace: view.Namespace, Kind: view.Kind})
	view.Events = page.Events[max(0, len(page.Events)-rows):]
	slices.Reverse(view.Events)
	return view, err
}

// auditView is the content of the page of the audit log.
type auditView struct {
	Event, Application, Business, Task string
	Records                            []client.AuditRecord
	Next                               string
}

func listAudit(ctx context.Context, v *visit) (any, error) {
	view := auditView{Event: v.query("event"), Application: v.query("application"), Business: v.query("business"), Task: v.query("task")}
	page, err := v.api.AuditPage(ctx, client.AuditQuery{
		Event: view.Event, Application: view.Application, Business: view.Business, Task: procfleet.TaskID(view.Task),
		After: v.query("after"), PageSize: rows,
	})
	view.Records = page.Records
	if page.More {
		view.Next = v.nextPage(page.Next)
	}
	return view, err
}

// searchView is the content of the page of a search that does not lead to one page.
type searchView struct {
	For       string
	Processes string // address of the processes with this name
	Tasks     string // address of the tasks with such a process
	Hosts     string // address of the hosts with such a label
}

// search leads to the task or host that a viewer has typed, and otherwise shows where the text may be the
// name of a process.
func search(_ context.Context, v *visit) (any, error) {
	text := v.query("q")
	if id, err := procfleet.ParseTaskID(text); err == nil {
		return nil, searchTo("tasks/" + url.PathEscape(string(id)))
	}
	if host, err := parseHost(text); err == nil {
		return nil, searchTo("hosts/" + url.PathEscape(host.String()))
	}
	if text == "" {
		return searchView{}, nil
	}
	pattern := text
	if !strings.ContainsAny(text, "*?[") {
		pattern = "*" + text + "*"
	}
	return searchView{
		For:       text,
		Processes: Prefix + "processes?" + url.Values{"name": {pattern}}.Encode(),
		Tasks:     Prefix + "tasks?" + url.Values{"process": {text}}.Encode(),
		Hosts:     Prefix + "hosts?" + url.Values{"labels": {text}}.Encode(),
	}, nil
}

// searchTo leads to a page.
func searchTo(path string) error { return &elsewhere{Prefix + path} }

// elsewhere is the error of a page that leads to another one.
type elsewhere struct{ address string }

func (e *elsewhere) Error() string { return "see " + e.address }
