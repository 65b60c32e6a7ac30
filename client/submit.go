package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// Submission becomes one task.
type Submission struct {
	// Operations on the same process of a host are done in this order, all others
	// concurrently.
	Operations []Operation
	// Timeout is from acceptance to the deadline, after which items without a
	// result fail; 1 s to 7 days. Zero is computed from the operations, plus 60 s.
	Timeout procfleet.Duration
	// Lenient lets an operation with an unknown action, a missing command or a
	// relative path fail alone, on its hosts. Otherwise the whole submission is
	// rejected.
	Lenient bool
	// Business is stored with the task. A Select needs it: it is the id
	// of a business, after the account and a dot ("acme.2") if that is not "0".
	Business string
	// Callback is a URL that is notified when the task is finished.
	Callback string
	// IdempotencyKey makes submitting again harmless, also from another
	// process: the same key is the same task, until 7 days after the task's
	// deadline. Up to 255 printable ASCII characters; if empty, Submit makes a
	// unique key.
	IdempotencyKey string
}

// MarshalJSON writes a [v1.TaskRequest]. A single operation stands beside the
// options, so that the server's errors name its fields without an index.
func (s Submission) MarshalJSON() ([]byte, error) {
	body := v1.TaskRequest{TaskOptions: v1.TaskOptions{Timeout: s.Timeout, Business: s.Business, Callback: s.Callback}}
	if s.Lenient {
		body.Strict = new(bool)
	}
	switch len(s.Operations) {
	case 0:
		body.Operations = []Operation{} // the server rejects an empty list
	case 1:
		body.Operation = s.Operations[0]
	default:
		body.Operations = s.Operations
	}
	return json.Marshal(body)
}

const maxKey = 255 // bytes of an Idempotency-Key

// Submit submits a task and returns its id: from then on the task will run,
// whatever happens to this process or to the server. It retries always under one
// key, so that there is never a second task. An error means that there is no
// task, unless it is an [*UnknownError].
func (c *Client) Submit(ctx context.Context, s Submission) (procfleet.TaskID, error) {
	if s.IdempotencyKey == "" {
		s.IdempotencyKey = rand.Text()
	}
	if len(s.IdempotencyKey) > maxKey || !printable(s.IdempotencyKey) {
		return "", fmt.Errorf("the idempotency key has more than %d characters, or some that are not printable ASCII", maxKey)
	}
	body, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode the submission: %w", err)
	}
	var answer v1.TaskCreated
	unknown := &UnknownError{IdempotencyKey: s.IdempotencyKey}
	maybe := false
	err = c.persist(ctx, func(server address) error {
		if ctx.Err() != nil { // nothing was sent
			return ended(ctx, nil)
		}
		err := c.attempt(ctx, server, request{method: http.MethodPost, path: "/v1/tasks", body: body, key: s.IdempotencyKey}, &answer)
		if err == nil && answer.ID == "" {
			err = fmt.Errorf("%s/v1/tasks: %w: it has no id", server, ErrBadAnswer)
		}
		maybe = maybe || mayBeAccepted(err)
		if e, ok := errors.AsType[*Error](err); ok && e.Task != "" {
			unknown.Task = e.Task
		}
		return err
	})
	if err != nil && maybe && !refused(err) {
		unknown.Err = err
		return "", unknown
	}
	return answer.ID, err
}

// refused reports whether the server rejected the submission: under the key there
// is no task, or one of another request. A rejection by a proxy does not prove
// that.
func refused(err error) bool {
	answer, ok := errors.AsType[*Error](err)
	return ok && !answer.foreign && answer.Status < http.StatusInternalServerError && !answer.Retryable()
}

// mayBeAccepted reports whether the task may exist after a failure: the server
// did not know, or its response was lost. A proxy sends 503 also when it loses
// the server during the request.
func mayBeAccepted(err error) bool {
	if answer, ok := errors.AsType[*Error](err); ok {
		busy := answer.Status == http.StatusServiceUnavailable && answer.Code != string(v1.CodeUnknown) && !answer.foreign
		return answer.Status >= http.StatusInternalServerError && !busy
	}
	if lost, ok := errors.AsType[*connectionError](err); ok {
		return !lost.unsent
	}
	return errors.As(err, new(*stopped)) || errors.Is(err, ErrBadAnswer)
}

// Plan returns what a submission would do now, without making a task. It ignores
// the IdempotencyKey.
func (c *Client) Plan(ctx context.Context, s Submission) (p Plan, err error) {
	return p, c.send(ctx, http.MethodPost, "/v1/tasks?plan=true", s, &p)
}
