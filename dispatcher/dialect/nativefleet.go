package dialect

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/internal/plaintext"
	"github.com/procfleet/procfleet/label"
)

func decodeTaskPage(r *Request) (TaskPage, error) {
	from := queryReader{Request: r}
	p := TaskPage{Limit: from.limit(), TaskFilter: from.taskFilter()}
	if cursor := r.Query.Get("cursor"); cursor != "" {
		var err error
		if p.Before, err = procfleet.TaskID(cursor).Number(); err != nil {
			from.fail("cursor", "is not the next of a page before")
		}
	}
	return p, from.err
}

// The parameters of [queryReader.taskFilter], [queryReader.hostFilter] and
// [queryReader.processFilter].
var (
	taskFilters    = []string{"state", "action", "business", "application", "created_after", "host", "process"}
	hostFilters    = []string{"area", "label", "conflict"}
	processFilters = []string{"state", "namespace", "name", "restarted"}
)

func (q *queryReader) taskFilter() TaskFilter {
	f := TaskFilter{
		Action: procfleet.Action(q.Query.Get("action")), Business: q.Query.Get("business"),
		Application: q.Query.Get("application"), CreatedAfter: q.moment("created_after"),
		ItemFilter: ItemFilter{Host: q.host("host"), Process: q.Query.Get("process")},
	}
	if f.Action != "" && !f.Action.Known() {
		q.fail("action", "is not one of %v", procfleet.Actions())
	}
	for _, text := range q.Query["state"] {
		state := procfleet.TaskState(text)
		if !slices.Contains(taskStates, state) {
			q.fail("state", "is not one of %v", taskStates)
		}
		f.States = append(f.States, state)
	}
	return f
}

var taskStates = []procfleet.TaskState{procfleet.TaskAccepted, procfleet.TaskRunning, procfleet.TaskFinished, procfleet.TaskRejected}

// moment reads a time of RFC 3339; the zero time if it is absent.
func (q *queryReader) moment(name string) (at time.Time) {
	if text := q.Query.Get(name); text != "" {
		var err error
		if at, err = time.Parse(time.RFC3339, text); err != nil {
			q.fail(name, "is not a time such as 2026-11-21T05:35:00Z")
		}
	}
	return at
}

func (q *queryReader) hostFilter() (f HostFilter) {
	for _, text := range q.Query["area"] {
		area, err := strconv.ParseInt(text, 10, 64)
		if err != nil || area < 0 {
			q.fail("area", "is not a cloud area, a number of 0 or more")
		}
		f.Areas = append(f.Areas, procfleet.CloudArea(area))
	}
	for _, text := range q.Query["label"] {
		filter, err := label.ParseFilter(text)
		if err != nil {
			q.fail("label", "%s", err.Error())
		}
		f.Labels = append(f.Labels, filter)
	}
	if only := q.truth("conflict"); only != nil {
		f.Conflict = *only
	}
	return f
}

func (q *queryReader) processFilter() ProcessFilter {
	f := ProcessFilter{State: q.Query.Get("state"), Namespace: q.Query.Get("namespace"), Name: q.Query.Get("name")}
	if _, err := path.Match(f.Name, ""); err != nil {
		q.fail("name", "is no valid pattern")
	}
	if only := q.truth("restarted"); only != nil {
		f.Restarted = *only
	}
	return f
}

func decodeHostPage(r *Request) (HostPage, error) {
	from := queryReader{Request: r}
	p := HostPage{Limit: from.limit(), After: from.host("after"), HostFilter: from.hostFilter()}
	if with := from.truth("processes"); with != nil {
		p.Processes = *with
	}
	if only := from.truth("missing"); only != nil {
		p.Missing = *only
	}
	p.Business, p.Modules = r.Query.Get("business"), r.Query["module"]
	if p.Business == "" && (len(p.Modules) > 0 || p.Missing) {
		from.fail("business", "is required with module and missing")
	}
	return p, from.err
}

func nativeHosts(_ *HostPage, found Hosts, _ string) Reply {
	return ok(v1.HostPage{Hosts: found.Agents, Next: found.Next.String()})
}

func decodeFleetPage(r *Request) (FleetPage, error) {
	from := queryReader{Request: r}
	q := FleetPage{
		Limit: from.limit(), After: from.host("after"), Business: r.Query.Get("business"), Modules: r.Query["module"],
		HostFilter: from.hostFilter(), ProcessFilter: from.processFilter(),
	}
	if with := from.truth("drift"); with != nil {
		q.Drift = *with
	}
	if only := from.truth("drifted"); only != nil {
		q.Drifted = *only
	}
	if len(q.Modules) > 0 && q.Business == "" {
		from.fail("module", "requires business")
	}
	hosts, err := parseHosts(r.Query["host"], "host")
	q.Hosts = hosts
	return q, errors.Join(from.err, err)
}

func nativeFleet(_ *FleetPage, found FleetProcesses, _ string) Reply {
	page := v1.FleetProcessPage{Processes: make([]v1.FleetProcess, len(found.Processes)), Next: found.Next.String()}
	for i := range found.Processes {
		p := &found.Processes[i]
		page.Processes[i] = v1.FleetProcess{
			Host: p.Host, AgentID: p.AgentID, Labels: p.Labels, Key: p.Key, Namespace: p.Namespace, Name: p.Name, Drift: p.Drift,
			Reported: *newNativeReported(&p.ReportedProcess, p.ReportedAt),
		}
	}
	return ok(page)
}

var auditEvents = []string{"accepted", "change", "refused", "transition", "finished"}

func decodeAuditQuery(r *Request) (AuditQuery, error) {
	from := queryReader{Request: r}
	q := AuditQuery{
		After: r.Query.Get("after"), Since: from.moment("since"), Limit: from.limit(), Event: r.Query.Get("event"),
		Application: r.Query.Get("application"), Business: r.Query.Get("business"), Task: procfleet.TaskID(r.Query.Get("task")),
	}
	if q.Event != "" && !slices.Contains(auditEvents, q.Event) {
		from.fail("event", "is not one of %v", auditEvents)
	}
	return q, from.err
}

func nativeAudit(_ *AuditQuery, page v1.AuditPage, _ string) Reply { return ok(page) }

// maxTail is the maximum number of lines of a tail, and defaultTail the default.
const (
	maxTail     = 10_000
	defaultTail = 200
)

func decodeOutputQuery(r *Request) (OutputQuery, error) {
	from := queryReader{Request: r}
	q := OutputQuery{
		Business: r.Query.Get("business"), Host: from.host("host"), Process: r.Query.Get("process"),
		Tail: from.number("tail", defaultTail, 0, maxTail), Since: from.moment("since"), Cursor: r.Query.Get("cursor"),
	}
	if log := from.truth("log_path"); log != nil {
		q.Log = *log
	}
	if q.Log && !q.Since.IsZero() {
		from.fail("since", "is not possible with log_path: the agent does not know when a line of a log file was written")
	}
	if follow := from.truth("follow"); follow != nil {
		q.Follow = *follow
	}
	if q.Host.IsZero() && r.Query.Get("host") == "" {
		from.err = errors.Join(from.err, required("host"))
	}
	if q.Process == "" {
		from.err = errors.Join(from.err, required("process"))
	}
	if namespace, name, found := strings.Cut(q.Process, "/"); found && namespace != "" && !strings.Contains(q.Process, ":") {
		q.Process = namespace + ":" + name
	}
	return q, errors.Join(from.err, tooLong("process", q.Process, 2*procfleet.MaxKey))
}

// nativeOutput escapes control characters: programs of callers print the data.
func nativeOutput(_ *OutputQuery, page v1.OutputPage, _ string) Reply {
	page.Data = plaintext.Text(page.Data)
	return ok(page)
}
