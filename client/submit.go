package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/procfleet/procfleet"
)

// Submission is what becomes one task.
type Submission struct {
	// Operations are done in this order where they are about one process on
	// one host, and all at the same time otherwise.
	Operations []Operation
	// Timeout is from acceptance to the moment when silent hosts are given up,
	// 1 s to 7 days; zero is what the operations may take, plus 60 s.
	Timeout procfleet.Duration
	// Lenient leaves what concerns one operation only to its hosts, where it
	// fails by itself: an unknown action, a command that is missing, a path that
	// is not absolute. Otherwise the whole submission is refused.
	Lenient bool
	// Business is for whom; kept with the task. A Select needs it: it is the id
	// of a business, after the account and a dot ("acme.2") if that is not "0".
	Business string
	// Callback is a URL that is told when the task is finished.
	Callback string
	// IdempotencyKey makes submitting again harmless, also from another
	// process: the same key is the same task, until 7 days after the task's
	// deadline. Up to 255 printable ASCII characters; if empty, Submit makes a
	// key that nobody else has.
	IdempotencyKey string
}

// Operation is one action on one process across a set of hosts. At least one
// of Hosts and Agents is needed, unless the process is Registered or there is a
// Select; a host that is named twice counts once.
type Operation struct {
	Action procfleet.Action `json:"action"`
	// Process begins with [procfleet.DefaultSpec]: zero fields are zero.
	Process procfleet.ProcessSpec `json:"process,omitzero"`
	// Select takes processes from the catalogue of the submission's Business,
	// and all hosts of the modules that they are bound to. Process, Hosts and
	// Agents are empty then.
	Select *procfleet.Selection `json:"select,omitempty"`
	// Registered takes the process from its registration on each host: Process
	// has Namespace and Name and nothing else. Without Hosts and Agents, the
	// operation is on every host where it is registered.
	Registered bool             `json:"registered,omitempty"`
	Hosts      []procfleet.Host `json:"hosts,omitempty"`
	// Agents are ids of agents; one that no live agent has announced ends as
	// unreachable.
	Agents []string `json:"agents,omitempty"`
}

// submissionExtras are the members beside the operations.
type submissionExtras struct {
	Strict   *bool              `json:"strict,omitempty"` // nil is true
	Timeout  procfleet.Duration `json:"timeout,omitempty"`
	Business string             `json:"business,omitempty"`
	Callback string             `json:"callback,omitempty"`
}

// MarshalJSON writes the body of POST /v1/tasks. A single operation is
// written as such, so that the server's errors name its fields without a
// number.
func (s Submission) MarshalJSON() ([]byte, error) {
	extras := submissionExtras{Timeout: s.Timeout, Business: s.Business, Callback: s.Callback}
	if s.Lenient {
		extras.Strict = new(bool)
	}
	if len(s.Operations) == 1 {
		return json.Marshal(struct {
			Operation
			submissionExtras
		}{s.Operations[0], extras})
	}
	operations := s.Operations
	if operations == nil {
		operations = []Operation{} // refused for what it is
	}
	return json.Marshal(struct {
		Operations []Operation `json:"operations"`
		submissionExtras
	}{operations, extras})
}

const maxKey = 255 // bytes of an Idempotency-Key

// Submit has a task made and returns its id: from then on it will run,
// whatever happens to this process or to the server. While no server answers
// or the answer is that it is a matter of time it repeats the submission, always
// under one key, so that there is never a second task. An error means that
// there is no task, unless it is an [*UnknownError].
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
	var answer struct {
		ID procfleet.TaskID `json:"id"`
	}
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

// refused reports whether the server has said no: under the key there is no
// task, or one of another request. A proxy that says no knows nothing of that.
func refused(err error) bool {
	answer, ok := errors.AsType[*Error](err)
	return ok && !answer.foreign && answer.Status < http.StatusInternalServerError && !answer.Retryable()
}

// codeUnknown is how a server says that it does not know what became of a
// submission.
const codeUnknown = "unknown"

// mayBeAccepted is true of the failures that do not say that nothing was
// done: the server did not know, or its answer was lost. A proxy answers 503
// also when it loses the server in the middle.
func mayBeAccepted(err error) bool {
	if answer, ok := errors.AsType[*Error](err); ok {
		busy := answer.Status == http.StatusServiceUnavailable && answer.Code != codeUnknown && !answer.foreign
		return answer.Status >= http.StatusInternalServerError && !busy
	}
	if lost, ok := errors.AsType[*connectionError](err); ok {
		return !lost.unsent
	}
	return errors.As(err, new(*stopped)) || errors.Is(err, ErrBadAnswer)
}
