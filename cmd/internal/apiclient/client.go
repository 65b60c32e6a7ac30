// Package apiclient is the command line's client of the native HTTP API.
package apiclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/procfleet/procfleet"
)

const (
	requestTimeout = 30 * time.Second
	maxAnswer      = 64 << 20 // bytes of one answer
	// submitTries is how often a submission is sent before giving up; its
	// idempotency key makes the repeats harmless.
	submitTries = 4
	retryPause  = time.Second
	// patience is enough for a server to be restarted, on another machine too.
	patience = 60 * time.Second
)

// Client asks one server. It is safe for concurrent use.
type Client struct {
	// Patience is how long Watch goes on asking a server that does not
	// answer; New sets 60 s.
	Patience time.Duration

	base string
	http *http.Client
}

// New returns a client of the server at a URL such as http://127.0.0.1:8080.
func New(server string) (*Client, error) {
	u, err := url.Parse(server)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("server %q is not a URL like http://127.0.0.1:8080", server)
	}
	return &Client{Patience: patience, base: strings.TrimRight(server, "/"), http: &http.Client{Timeout: requestTimeout}}, nil
}

// Submission is the body of POST /v1/tasks.
type Submission struct {
	Action  procfleet.Action   `json:"action"`
	Process json.RawMessage    `json:"process"` // keys of procfleet.ProcessSpec
	Hosts   []string           `json:"hosts"`   // "<cloud>:<ip>"
	Timeout procfleet.Duration `json:"timeout,omitempty"`
}

// Task is where a task stands.
type Task struct {
	ID         string           `json:"id"`
	State      string           `json:"state"`
	Items      int              `json:"items"`
	Counts     procfleet.Counts `json:"counts"`
	Actions    []string         `json:"actions,omitempty"`
	CreatedAt  time.Time        `json:"created_at"`
	Deadline   time.Time        `json:"deadline"`
	FinishedAt time.Time        `json:"finished_at,omitzero"`
}

// Done reports whether nothing more is awaited.
func (t *Task) Done() bool { return procfleet.TaskState(t.State).Done() }

// Result is where one item of a task stands.
type Result struct {
	Item       int                      `json:"item"`
	Host       string                   `json:"host"`
	AgentID    string                   `json:"agent_id,omitempty"`
	Namespace  string                   `json:"namespace,omitempty"`
	Name       string                   `json:"name,omitempty"`
	Key        string                   `json:"key"` // of the process
	Action     procfleet.Action         `json:"action"`
	State      procfleet.State          `json:"state"`
	Code       procfleet.Code           `json:"code"`
	Reason     procfleet.Reason         `json:"reason,omitempty"`
	Message    string                   `json:"message,omitempty"`
	Warnings   []string                 `json:"warnings,omitempty"`
	Status     *procfleet.ProcessStatus `json:"status,omitempty"`
	AcceptedAt time.Time                `json:"accepted_at,omitzero"`
	StartedAt  time.Time                `json:"started_at,omitzero"`
	FinishedAt time.Time                `json:"finished_at,omitzero"`
	Late       bool                     `json:"late,omitempty"`
}

// TaskPage and ResultPage are one page of a list; Next asks for the next one
// and is empty after the last.
type (
	TaskPage struct {
		Tasks []Task `json:"tasks"`
		Next  string `json:"next,omitempty"`
	}
	ResultPage struct {
		Results []Result `json:"results"`
		Next    string   `json:"next,omitempty"`
	}
)

// Page selects part of a list; zero values are the server's defaults.
type Page struct {
	State  procfleet.State // results only
	Limit  int
	Cursor string
}

func (p Page) query() string {
	q := url.Values{}
	if p.State != "" {
		q.Set("state", string(p.State))
	}
	if p.Limit > 0 {
		q.Set("limit", strconv.Itoa(p.Limit))
	}
	if p.Cursor != "" {
		q.Set("cursor", p.Cursor)
	}
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// Submit sends a submission and returns the task's id. While the server is
// busy or the connection breaks it tries again under the same key, which must
// not be empty. The error wraps [ErrUnknown] if a task may have been made.
func (c *Client) Submit(ctx context.Context, s Submission, idempotencyKey string) (string, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode the submission: %w", err)
	}
	var answer struct {
		ID string `json:"id"`
	}
	unknown := false
	for try := 1; ; try++ {
		err = c.do(ctx, http.MethodPost, "/v1/tasks", body, http.Header{"Idempotency-Key": {idempotencyKey}}, &answer)
		unknown = unknown || mayHaveBeenAccepted(err)
		if err == nil || try == submitTries || !worthRepeating(err) {
			break
		}
		select {
		case <-time.After(retryPause):
			continue
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		break
	}
	if err != nil && unknown && !refused(err) {
		err = fmt.Errorf("%w (%w)", err, ErrUnknown)
	}
	return answer.ID, err
}

// Task returns a task.
func (c *Client) Task(ctx context.Context, id string) (t Task, err error) {
	return t, c.get(ctx, "/v1/tasks/"+url.PathEscape(id), &t)
}

// Tasks returns a page of tasks, newest first.
func (c *Client) Tasks(ctx context.Context, p Page) (page TaskPage, err error) {
	return page, c.get(ctx, "/v1/tasks"+p.query(), &page)
}

// Results returns a page of a task's results, failures first.
func (c *Client) Results(ctx context.Context, id string, p Page) (page ResultPage, err error) {
	return page, c.get(ctx, "/v1/tasks/"+url.PathEscape(id)+"/results"+p.query(), &page)
}

// Watch polls a task until it is done, telling seen each time, and returns
// it. While the server is busy, fails or does not answer it keeps asking, up to
// c.Patience after the last answer; away is told of each such outage once. It
// gives up at once when ctx ends or the server refuses.
func (c *Client) Watch(ctx context.Context, id string, seen func(Task), away func(error)) (Task, error) {
	const first, slowest = 50 * time.Millisecond, time.Second
	answered, outage := time.Now(), false
	for pause := first; ; pause = min(pause*3/2, slowest) {
		t, err := c.Task(ctx, id)
		switch {
		case err == nil:
			answered, outage = time.Now(), false
			seen(t)
			if t.Done() {
				return t, nil
			}
		case ctx.Err() != nil:
			return Task{}, context.Cause(ctx)
		case refused(err), time.Since(answered) > c.Patience:
			return Task{}, err
		case !outage:
			outage = true
			away(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return Task{}, context.Cause(ctx)
		}
	}
}

// Ready returns nil once the server says that all its parts are.
func (c *Client) Ready(ctx context.Context) error { return c.get(ctx, "/readyz", nil) }

// Error is the server's answer to a request that it did not carry out.
type Error struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`
}

func (e *Error) Error() string {
	text := e.Message
	if e.Field != "" && !strings.Contains(text, e.Field) {
		text = e.Field + ": " + text
	}
	switch {
	case e.Code == codeUnknown: // the text names the task if the server can
	case e.Status == http.StatusServiceUnavailable:
		return text + " (the server is busy or a part of it is away; try again, or look at /readyz)"
	case e.Status == http.StatusConflict:
		return text + " (choose another --idempotency-key)"
	}
	return text
}

// ErrUnreachable means that no server answers at the address.
var ErrUnreachable = errors.New("server not reachable")

// ErrUnknown means that a submission may have been accepted or not.
var ErrUnknown = errors.New("the task may have been accepted or not")

// codeUnknown is how a server says that it does not know what became of a
// submission.
const codeUnknown = "unknown"

// refused reports whether the server has said no, which it will say again.
func refused(err error) bool {
	answer, ok := errors.AsType[*Error](err)
	return ok && answer.Status < http.StatusInternalServerError
}

func worthRepeating(err error) bool {
	return !refused(err) && !errors.Is(err, ErrUnreachable) && !errors.Is(err, context.Canceled)
}

// mayHaveBeenAccepted is true of the failures that do not say that nothing
// was done: the server did not know, or its answer was lost.
func mayHaveBeenAccepted(err error) bool {
	if answer, ok := errors.AsType[*Error](err); ok {
		return answer.Code == codeUnknown || answer.Status >= http.StatusInternalServerError && answer.Status != http.StatusServiceUnavailable
	}
	return err != nil && !errors.Is(err, ErrUnreachable)
}

func (c *Client) get(ctx context.Context, path string, into any) error {
	return c.do(ctx, http.MethodGet, path, nil, nil, into)
}

func (c *Client) do(ctx context.Context, method, path string, body []byte, header http.Header, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if header != nil {
		req.Header = header.Clone()
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", c.base, err)
	}
	if resp.StatusCode/100 != 2 {
		return refusal(resp.StatusCode, data)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s%s did not answer as procfleet does; is --server right? %w", c.base, path, err)
	}
	return nil
}

func (c *Client) explain(err error) error {
	op, ok := errors.AsType[*net.OpError](err)
	if errors.Is(err, syscall.ECONNREFUSED) || (ok && op.Op == "dial") {
		return fmt.Errorf("%w at %s: is `procfleet up` (or a dispatcher) running there? Start it, or name another with --server or PROCFLEET_SERVER", ErrUnreachable, c.base)
	}
	return fmt.Errorf("ask %s: %w", c.base, err)
}

func refusal(status int, body []byte) error {
	var answer struct {
		Error Error `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Error.Message == "" {
		const shown = 200
		return &Error{Status: status, Message: fmt.Sprintf("the server answered %d %s: %.*s", status, http.StatusText(status), shown, body)}
	}
	answer.Error.Status = status
	return &answer.Error
}
