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

// Submission is the content of one task.
type Submission struct {
	// Operations on the same process of a host are executed in this order, all
	// others concurrently.
	Operations []Operation
	// Timeout is the time from acceptance until items without a result fail, 1 s
	// to 7 days. Zero: computed from the operations, plus 60 s.
	Timeout procfleet.Duration
	// Lenient accepts an operation with an unknown action, a missing command or a
	// relative path, and reports its items as failed. If false, the server rejects
	// the whole submission.
	Lenient bool
	// Business is stored with the task, and required for a Select: the id of a
	// business, prefixed with the account and a dot ("acme.2") unless that is "0".
	Business string
	// Callback is a URL that is notified when the task ends.
	Callback string
	// Rollout releases the hosts gradually; nil delivers all operations at once.
	Rollout *procfleet.RolloutPolicy
	// Queue lets operations wait for hosts without an agent; nil ends them as unreachable.
	Queue *procfleet.HostQueue
	// Override is the reason to operate hosts outside of their maintenance windows, for audit records;
	// "" heeds the windows.
	Override string `json:"-"`
	// Policy names a stored rollout policy; see [Client.SetRolloutPolicies]. It excludes Rollout.
	// Without both, the default of the business applies.
	Policy string
	// IdempotencyKey makes repeated submissions safe, also from another process:
	// until 7 days after the task's deadline, the same key refers to the same
	// task. It has up to 255 printable ASCII characters; if empty, Submit
	// generates a unique key.
	IdempotencyKey string
}

// MarshalJSON encodes a [v1.TaskRequest]. The members of a single operation are
// merged with the options, so that the server's errors name fields without an index.
func (s Submission) MarshalJSON() ([]byte, error) {
	body := v1.TaskRequest{TaskOptions: v1.TaskOptions{Timeout: s.Timeout, Business: s.Business, Callback: s.Callback, Rollout: s.Rollout, Queue: s.Queue}}
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

// Submit submits a task and returns its id. Once accepted, the task runs even if
// this process or the server stops. All retries use the same key, so that there is
// never a second task. An error means that there is no task, unless it is an
// [*UnknownError].
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
		if ctx.Err() != nil { // no request was sent
			return ended(ctx, nil)
		}
		err := c.attempt(ctx, server, request{method: http.MethodPost, path: "/v1/tasks", body: body, key: s.IdempotencyKey, policy: s.Policy, override: s.Override}, &answer)
		if err == nil && answer.ID == "" {
			err = fmt.Errorf("%s/v1/tasks: %w: it has no id", server, ErrBadResponse)
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

// refused reports whether the server itself rejected the submission: the key refers
// to no task, or to the task of another request. A rejection by a proxy is no
// proof.
func refused(err error) bool {
	answer, ok := errors.AsType[*Error](err)
	return ok && !answer.foreign && answer.Status < http.StatusInternalServerError && !answer.Retryable()
}

// mayBeAccepted reports whether the task may exist after an error: the server could
// not determine the outcome, or its response was lost. A proxy also responds with
// 503 if it loses the server during the request.
func mayBeAccepted(err error) bool {
	if answer, ok := errors.AsType[*Error](err); ok {
		busy := answer.Status == http.StatusServiceUnavailable && answer.Code != string(v1.CodeUnknown) && !answer.foreign
		return answer.Status >= http.StatusInternalServerError && !busy
	}
	if lost, ok := errors.AsType[*connectionError](err); ok {
		return !lost.unsent
	}
	return errors.As(err, new(*stopped)) || errors.Is(err, ErrBadResponse)
}

// Plan returns the effect that a submission would have now, without creating a
// task. It ignores the IdempotencyKey.
func (c *Client) Plan(ctx context.Context, s Submission) (p Plan, err error) {
	body, err := json.Marshal(s)
	if err != nil {
		return p, fmt.Errorf("encode the submission: %w", err)
	}
	return p, c.do(ctx, request{method: http.MethodPost, path: "/v1/tasks?plan=true", body: body, policy: s.Policy, override: s.Override}, &p)
}
