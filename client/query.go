package client

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
)

// Task is where a task stands. Its JSON is the API's, except that
// finished_at is left out, and not null, while the task is open.
type Task struct {
	ID    procfleet.TaskID    `json:"id"`
	State procfleet.TaskState `json:"state"`
	// Items is the number of items, one process on one host each, and Counts
	// how many are in each state; they add up to Items.
	Items   int                `json:"items"`
	Counts  procfleet.Counts   `json:"counts"`
	Actions []procfleet.Action `json:"actions"`

	CreatedAt  time.Time `json:"created_at"`
	Deadline   time.Time `json:"deadline"` // when silent hosts are given up
	FinishedAt time.Time `json:"finished_at,omitzero"`
	ExpiresAt  time.Time `json:"expires_at"` // when the server forgets the task

	RejectReason string `json:"reject_reason,omitempty"`
	Dialect      string `json:"dialect"` // the call that made the task
	Application  string `json:"application"`
	Business     string `json:"business"`
	// Callback is the URL without its user part, query and fragment.
	Callback string `json:"callback,omitempty"`
}

// Done reports whether nothing more is awaited.
func (t *Task) Done() bool { return t.State.Done() }

// Succeeded reports whether the task is finished and every host did what was
// asked, or was so already.
func (t *Task) Succeeded() bool {
	return t.State == procfleet.TaskFinished && t.Counts.Failed() == 0
}

// Result is where one item of a task stands. Its JSON is the API's.
type Result struct {
	Item int `json:"item"` // the item's number in its task
	// Host is zero if the caller named an agent that nobody had announced.
	Host      procfleet.Host `json:"host"`
	AgentID   string         `json:"agent_id,omitempty"`
	Namespace string         `json:"namespace,omitempty"`
	Name      string         `json:"name,omitempty"`
	Key       string         `json:"key"` // of the process, see [procfleet.ProcessSpec.Key]

	Action procfleet.Action `json:"action"`
	State  procfleet.State  `json:"state"`
	Code   procfleet.Code   `json:"code"`
	Reason procfleet.Reason `json:"reason,omitempty"`
	// Message is what was wrong, where, and what to do; "success" for code 0.
	Message  string   `json:"message,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Status is what the agent saw after the action; nil if it did not look.
	Status     *procfleet.ProcessStatus `json:"status,omitempty"`
	AcceptedAt time.Time                `json:"accepted_at,omitzero"`
	StartedAt  time.Time                `json:"started_at,omitzero"`
	FinishedAt time.Time                `json:"finished_at,omitzero"`
	// Late is set when the result replaced one that the server had made for
	// want of the agent's word.
	Late bool `json:"late,omitempty"`
}

// Agent is a live agent: a host that can be operated. Its JSON is the API's.
type Agent struct {
	Host       procfleet.Host `json:"host"`
	AgentID    string         `json:"agent_id"`
	Instance   string         `json:"instance"`
	Version    string         `json:"version"`
	OS         string         `json:"os"`
	Arch       string         `json:"arch"`
	StartedAt  time.Time      `json:"started_at"`
	SeenAt     time.Time      `json:"seen_at"`
	Supervised int            `json:"supervised"` // number of processes
	// CPU and Memory are how much of the host is in use, in percent of all of it.
	CPU    float64 `json:"cpu"`
	Memory float64 `json:"memory"`
	// Conflict is true while two agents claim to be this host.
	Conflict bool `json:"conflict"`
}

// Query selects from a list; the zero Query is all of it.
type Query struct {
	// State, for results only, selects the items in this state.
	State procfleet.State
	// Business, for processes only, is for whom is asked; see [Targets].
	Business string
	// PageSize is how many the server is asked for at a time, 1 to 1000; zero
	// is 1000.
	PageSize int
	// Cursor goes on after the page whose Next it was.
	Cursor string
}

// Page is part of a list. Next is the cursor of the next page, empty after
// the last one.
type Page[T any] struct {
	Items []T
	Next  string
}

// LargestPage is the most that a server gives at a time.
const LargestPage = 1000

func (q Query) size() int { return cmp.Or(q.PageSize, LargestPage) }

// of returns the query of a path; cursor is what the list calls its cursor.
func (q Query) of(cursor string) string {
	values := url.Values{"limit": {strconv.Itoa(q.size())}}
	if q.State != "" {
		values.Set("state", string(q.State))
	}
	if q.Cursor != "" {
		values.Set(cursor, q.Cursor)
	}
	return "?" + values.Encode()
}

func taskPath(id procfleet.TaskID) string { return "/v1/tasks/" + url.PathEscape(string(id)) }

// Task returns a task; the error is [ErrNotFound] if there is none or the
// server has forgotten it.
func (c *Client) Task(ctx context.Context, id procfleet.TaskID) (t Task, err error) {
	return t, c.do(ctx, get(taskPath(id)), &t)
}

// Tasks yields tasks, newest first. It ends after the first error.
func (c *Client) Tasks(ctx context.Context, q Query) iter.Seq2[Task, error] {
	return all(q, func(q Query) (Page[Task], error) { return c.TaskPage(ctx, q) })
}

// TaskPage returns one page of [Client.Tasks].
func (c *Client) TaskPage(ctx context.Context, q Query) (Page[Task], error) {
	var answer struct {
		Tasks []Task `json:"tasks"`
		Next  string `json:"next"`
	}
	q.State = ""
	err := c.do(ctx, get("/v1/tasks"+q.of("cursor")), &answer)
	return Page[Task]{answer.Tasks, answer.Next}, err
}

// Results yields the results of a task by state, failures first. It ends
// after the first error. While the task runs items move between states: one may
// be yielded twice or not at all, and after the end each exactly once.
func (c *Client) Results(ctx context.Context, id procfleet.TaskID, q Query) iter.Seq2[Result, error] {
	return all(q, func(q Query) (Page[Result], error) { return c.ResultPage(ctx, id, q) })
}

// ResultPage returns one page of [Client.Results].
func (c *Client) ResultPage(ctx context.Context, id procfleet.TaskID, q Query) (Page[Result], error) {
	var answer struct {
		Results []Result `json:"results"`
		Next    string   `json:"next"`
	}
	err := c.do(ctx, get(taskPath(id)+"/results"+q.of("cursor")), &answer)
	return Page[Result]{answer.Results, answer.Next}, err
}

// Hosts yields the hosts that have a live agent, by cloud area and address.
// It ends after the first error.
func (c *Client) Hosts(ctx context.Context, q Query) iter.Seq2[Agent, error] {
	return all(q, func(q Query) (Page[Agent], error) { return c.HostPage(ctx, q) })
}

// HostPage returns one page of [Client.Hosts].
func (c *Client) HostPage(ctx context.Context, q Query) (Page[Agent], error) {
	var answer struct {
		Hosts []Agent `json:"hosts"`
		Next  string  `json:"next"`
	}
	q.State = ""
	err := c.do(ctx, get("/v1/hosts"+q.of("after")), &answer)
	return Page[Agent]{answer.Hosts, answer.Next}, err
}

// Ready asks the servers once and returns nil if one says that all its parts
// are ready.
func (c *Client) Ready(ctx context.Context) error {
	return c.round(func(server address) error { return c.attempt(ctx, server, get("/readyz"), nil) })
}

// all goes through the pages of a list.
func all[T any](q Query, page func(Query) (Page[T], error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			p, err := page(q)
			if err != nil {
				yield(*new(T), err)
				return
			}
			for i := range p.Items {
				if !yield(p.Items[i], nil) {
					return
				}
			}
			switch p.Next {
			case "":
				return
			case q.Cursor: // it would go on for ever
				yield(*new(T), fmt.Errorf("%w: a page leads to itself", ErrBadAnswer))
				return
			}
			q.Cursor = p.Next
		}
	}
}
