package client

import (
	"context"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// TaskQuery selects tasks; the zero TaskQuery selects all.
type TaskQuery struct {
	Query

	States       []procfleet.TaskState // any of these
	Action       procfleet.Action      // with an operation of this action
	Business     string
	Application  string // that created the task
	CreatedAfter time.Time
	Host         procfleet.Host // with an item on this host; zero = any
	Process      string         // with an item of this process, "name" or "namespace:name"
}

// Tasks yields tasks, newest first. It ends after the first error.
func (c *Client) Tasks(ctx context.Context, q TaskQuery) iter.Seq2[Task, error] {
	return all(q.Query, func(page Query) (Page[Task], error) {
		q.Query = page
		return c.TaskPage(ctx, q)
	})
}

// TaskPage returns one page of [Client.Tasks].
func (c *Client) TaskPage(ctx context.Context, q TaskQuery) (Page[Task], error) {
	values := nonEmpty(map[string]string{"action": string(q.Action), "business": q.Business, "application": q.Application, "created_after": moment(q.CreatedAfter), "process": q.Process, "host": q.Host.String()})
	for _, state := range q.States {
		values.Add("state", string(state))
	}
	var answer v1.TaskPage
	err := c.do(ctx, get(q.pathOf("/v1/tasks", "cursor", values)), &answer)
	return Page[Task]{answer.Tasks, answer.Next}, err
}

func moment(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

// HostQuery selects hosts that have a live agent; the zero HostQuery selects all. With
// Query.Business it selects the hosts in the topology of the business, and [Client.Hosts]
// yields also those without a live agent.
type HostQuery struct {
	Query

	Areas []procfleet.CloudArea // any of these
	// Labels are filters "key=pattern", "key!=pattern" or "key" of labels and facts, which
	// all must match.
	Labels   []string
	Modules  []string // only hosts of the modules with these names; requires Business
	Conflict bool     // only hosts that two agents claim
	// Missing selects hosts of Business without a live agent; not for processes.
	Missing bool
	// Processes requests [Agent].Processes and FrozenUntil; not for processes.
	Processes bool
}

func (q *HostQuery) values() url.Values {
	values := url.Values{}
	for _, area := range q.Areas {
		values.Add("area", strconv.FormatInt(int64(area), 10))
	}
	for _, filter := range q.Labels {
		values.Add("label", filter)
	}
	if q.Conflict {
		values.Set("conflict", "true")
	}
	if q.Business != "" {
		values.Set("business", q.Business)
	}
	for _, module := range q.Modules {
		values.Add("module", module)
	}
	return values
}

// Hosts yields the hosts that have a live agent, by cloud area and address.
// It ends after the first error.
func (c *Client) Hosts(ctx context.Context, q HostQuery) iter.Seq2[Agent, error] {
	return all(q.Query, func(page Query) (Page[Agent], error) {
		q.Query = page
		return c.HostPage(ctx, q)
	})
}

// HostPage returns one page of [Client.Hosts].
func (c *Client) HostPage(ctx context.Context, q HostQuery) (Page[Agent], error) {
	values := q.values()
	if q.Processes {
		values.Set("processes", "true")
	}
	if q.Missing {
		values.Set("missing", "true")
	}
	var answer v1.HostPage
	err := c.do(ctx, get(q.pathOf("/v1/hosts", "after", values)), &answer)
	return Page[Agent]{answer.Hosts, answer.Next}, err
}

// FleetQuery selects processes in the last reports of hosts with a live agent; the zero
// FleetQuery selects all. Query.Business limits it to the hosts of a business.
type FleetQuery struct {
	HostQuery

	Hosts     []procfleet.Host // only these
	State     string           // "up", "down", or a phase of [procfleet.ProcessStatus]
	Namespace string
	Name      string // pattern, for example "web*"
	Restarted bool   // only processes that the agent has restarted
	Drift     bool   // requests [FleetProcess].Drift
	Drifted   bool   // only registered processes that differ from their registration, with Drift
}

// FleetProcess is a process in the last report of a host.
type FleetProcess = v1.FleetProcess

// Fleet yields processes by host. It ends after the first error.
func (c *Client) Fleet(ctx context.Context, q FleetQuery) iter.Seq2[FleetProcess, error] {
	return all(q.Query, func(page Query) (Page[FleetProcess], error) {
		q.Query = page
		return c.FleetPage(ctx, q)
	})
}

// FleetPage returns one page of [Client.Fleet]: all processes of its last host, so that it may
// be longer than PageSize.
func (c *Client) FleetPage(ctx context.Context, q FleetQuery) (Page[FleetProcess], error) {
	values := q.values()
	for name, value := range map[string]string{"state": q.State, "namespace": q.Namespace, "name": q.Name} {
		if value != "" {
			values.Set(name, value)
		}
	}
	for _, host := range q.Hosts {
		values.Add("host", host.String())
	}
	if q.Restarted {
		values.Set("restarted", "true")
	}
	if q.Drift {
		values.Set("drift", "true")
	}
	if q.Drifted {
		values.Set("drifted", "true")
	}
	var answer v1.FleetProcessPage
	err := c.do(ctx, get(q.pathOf("/v1/hosts/processes", "after", values)), &answer)
	return Page[FleetProcess]{answer.Processes, answer.Next}, err
}

// OutputPage is a part of the output of a process.
type OutputPage = v1.OutputPage

// OutputQuery selects the output of a process on a host.
type OutputQuery struct {
	Host    procfleet.Host
	Process string // "namespace/name", or the key of the process
	// Business is the owner of the host; see [Targets].
	Business string
	Tail     int       // number of last lines of the first page
	Since    time.Time // instead of Tail: output since this time, to the minute; not with Log
	Log      bool      // the file log_path of the process instead of its output
	Cursor   string    // the Next of the previous page
	Follow   bool      // with Cursor: wait some seconds for output
}

// OutputPage returns a part of the output of a process. The error is [ErrNotFound] if the agent
// has none, and [ErrUnavailable] if no agent answers.
func (c *Client) OutputPage(ctx context.Context, q OutputQuery) (page OutputPage, err error) {
	values := nonEmpty(map[string]string{"host": q.Host.String(), "process": q.Process, "business": q.Business, "cursor": q.Cursor, "since": moment(q.Since)})
	values.Set("tail", strconv.Itoa(q.Tail))
	if q.Log {
		values.Set("log_path", "true")
	}
	if q.Follow {
		values.Set("follow", "true")
	}
	return page, c.do(ctx, get("/v1/processes/output?"+values.Encode()), &page)
}
