package client

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// Query selects entries of a list; the zero Query selects all.
type Query struct {
	// State, for results only, selects items in this state.
	State procfleet.State
	// Business, for processes only, is the owner of the hosts; see [Targets].
	Business string
	// PageSize is the number of entries per request, 1 to 1000; zero means 1000.
	PageSize int
	// Cursor starts after the page with this Next.
	Cursor string
}

// Page is part of a list. Next is the cursor of the next page, empty on the last
// page.
type Page[T any] struct {
	Items []T
	Next  string
}

// LargestPage is the maximum page size of a server.
const LargestPage = 1000

func (q Query) size() int { return cmp.Or(q.PageSize, LargestPage) }

// path returns the request path of a page, with more parameters. cursor is the name of the
// cursor parameter.
func (q Query) path(path, cursor string, more map[string]string) string {
	return q.pathOf(path, cursor, nonEmpty(more))
}

func (q Query) pathOf(path, cursor string, values url.Values) string {
	values.Set("limit", strconv.Itoa(q.size()))
	if q.Cursor != "" {
		values.Set(cursor, q.Cursor)
	}
	return path + "?" + values.Encode()
}

// nonEmpty returns the parameters that are not empty.
func nonEmpty(parameters map[string]string) url.Values {
	values := url.Values{}
	for name, value := range parameters {
		if value != "" {
			values.Set(name, value)
		}
	}
	return values
}

func taskPath(id procfleet.TaskID) string { return "/v1/tasks/" + url.PathEscape(string(id)) }

// Task returns a task. The error is [ErrNotFound] if the task does not exist or has
// expired.
func (c *Client) Task(ctx context.Context, id procfleet.TaskID) (t Task, err error) {
	return t, c.do(ctx, get(taskPath(id)), &t)
}

// PauseTask pauses an open task: no further item of it begins until it is resumed. A
// paused task does not change. The error of a task that has ended, or that has another
// seq than the control expects, has the code "conflict".
func (c *Client) PauseTask(ctx context.Context, id procfleet.TaskID, control TaskControl) (t Task, err error) {
	return t, c.send(ctx, http.MethodPost, taskPath(id)+"/pause", control, &t)
}

// ResumeTask ends a hold of a task: by default it resumes a paused task. A task without that hold
// does not change. Errors are those of [Client.PauseTask].
func (c *Client) ResumeTask(ctx context.Context, id procfleet.TaskID, resume TaskResume) (t Task, err error) {
	return t, c.send(ctx, http.MethodPost, taskPath(id)+"/resume", resume, &t)
}

// ApproveTask approves a stage of a rollout that has ended, so that the next stage begins. Errors
// are those of [Client.PauseTask], also if another stage waits for an approval, or none.
func (c *Client) ApproveTask(ctx context.Context, id procfleet.TaskID, approval TaskApproval) (t Task, err error) {
	return t, c.send(ctx, http.MethodPost, taskPath(id)+"/approve", approval, &t)
}

// CancelTask cancels an open task: items that no agent has begun do not run. Commands that
// run end by themselves, or are interrupted. With Hosts, the task goes on for the other hosts.
// Repeating a cancel changes nothing. Errors are those of [Client.PauseTask], and 400 if the
// task has no item on one of the hosts.
func (c *Client) CancelTask(ctx context.Context, id procfleet.TaskID, cancel TaskCancel) (t Task, err error) {
	return t, c.send(ctx, http.MethodPost, taskPath(id)+"/cancel", cancel, &t)
}

// UndoTask cancels a rollout, if it is open, and returns the task that reverts it. Both tasks name
// each other. A repeated request returns the same task. Errors are those of [Client.PauseTask],
// and 409 if the task has no rollout or nothing can be reverted.
func (c *Client) UndoTask(ctx context.Context, id procfleet.TaskID, undo TaskUndo) (t Task, err error) {
	return t, c.send(ctx, http.MethodPost, taskPath(id)+"/undo", undo, &t)
}

// RetryTask creates a task from items of a task and the specs with which they ran, and
// returns the new task. Both tasks name each other. Without IfSeq, RetryTask reads the task
// first, so that a repeated request retries nothing twice. Errors are those of
// [Client.PauseTask], and 409 if no item is in the requested states.
func (c *Client) RetryTask(ctx context.Context, id procfleet.TaskID, retry TaskRetry) (t Task, err error) {
	if retry.IfSeq == nil {
		t, err := c.Task(ctx, id)
		if err != nil {
			return t, err
		}
		retry.IfSeq = &t.Seq
	}
	return t, c.send(ctx, http.MethodPost, taskPath(id)+"/retry", retry, &t)
}

// PlanRetry returns the plan of a retry. For each host it names the newest task that operated
// the process there after the task. Errors are those of [Client.RetryTask].
func (c *Client) PlanRetry(ctx context.Context, id procfleet.TaskID, retry TaskRetry) (p Plan, err error) {
	return p, c.send(ctx, http.MethodPost, taskPath(id)+"/retry?plan=true", retry, &p)
}

// Results yields the results of a task by state, failures first. It ends after the
// first error. Items of a running task change state, so an item may be yielded
// twice or not at all; for a finished task each item is yielded exactly once.
func (c *Client) Results(ctx context.Context, id procfleet.TaskID, q Query) iter.Seq2[Result, error] {
	return all(q, func(q Query) (Page[Result], error) { return c.ResultPage(ctx, id, q) })
}

// ResultPage returns one page of [Client.Results].
func (c *Client) ResultPage(ctx context.Context, id procfleet.TaskID, q Query) (Page[Result], error) {
	var answer v1.ResultPage
	err := c.do(ctx, get(q.path(taskPath(id)+"/results", "cursor", map[string]string{"state": string(q.State)})), &answer)
	return Page[Result]{answer.Results, answer.Next}, err
}

// Ready queries each server and returns nil if at least one reports that all its
// parts are ready.
func (c *Client) Ready(ctx context.Context) error {
	return c.round(func(server address) error { return c.attempt(ctx, server, get("/readyz"), nil) })
}

// Health returns the state of NATS, the task store, the workers and the sweep, as one of the
// servers sees them. It requires permission to read all businesses.
func (c *Client) Health(ctx context.Context) (h Health, err error) {
	return h, c.do(ctx, get("/v1/health"), &h)
}

// all yields the entries of all pages of a list.
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
			case q.Cursor: // the same page again: prevents an endless loop
				yield(*new(T), fmt.Errorf("%w: a page leads to itself", ErrBadResponse))
				return
			}
			q.Cursor = p.Next
		}
	}
}
