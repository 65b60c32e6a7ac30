package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/auth"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// keyHeader is the header of a caller's idempotency key.
const keyHeader = "Idempotency-Key"

// maxIdempotencyKey is the maximum length of a key in bytes.
const maxIdempotencyKey = 255

// acceptance is the origin of an authorized submission, from HTTP or NATS, and its terms.
type acceptance struct {
	call  string // full name of the dialect's call
	who   *auth.Caller
	terms terms
	start time.Time
	log   logrus.FieldLogger
}

// decode checks the caller's idempotency key and decodes a submission. It sets the stored policy
// that the caller selects, and the reason to override maintenance windows.
func (a *api) decode(
	ctx context.Context, key string, header func(string) string, decode func(*dialect.Request) (procfleet.Submission, error), in *dialect.Request,
) (procfleet.Submission, error) {
	if err := checkKey(key); err != nil {
		return procfleet.Submission{}, err
	}
	sub, err := inTurn(ctx, a.submitter.turns, len(in.Body) > turnBody, func() (procfleet.Submission, error) { return decode(in) })
	if err == nil {
		sub.Override = header(overrideHeader)
		err = errors.Join(namePolicy(&sub, header(policyHeader)), checkOverride(sub.Override))
	}
	return sub, err
}

// accept creates a task, or finds the task that an earlier request with the same key
// created. It returns when the task is durable.
func (a *api) accept(ctx context.Context, r *acceptance, from *procfleet.Submission) (procfleet.Task, error) {
	sub := *from
	*from = procfleet.Submission{} // the draft holds the operations from here on; do not keep a second copy of a large submission
	sub.Dialect, sub.Application = r.call, r.who.Application
	task, err := a.submitter.submit(ctx, sub, r.terms)
	if err != nil {
		return procfleet.Task{}, err
	}
	a.metrics.accepted(ctx, task.Dialect, task.Items)
	r.log.WithFields(logrus.Fields{
		"task": task.ID, "application": r.who.Application, "user": r.who.User, "items": task.Items, "elapsed_ms": time.Since(r.start).Milliseconds(),
	}).Info("task accepted")
	return task, nil
}

// checkKey rejects keys with control characters, which are reserved for keys of the dispatcher.
func checkKey(key string) error {
	var problem string
	switch {
	case len(key) > maxIdempotencyKey:
		problem = fmt.Sprintf("is longer than %d bytes", maxIdempotencyKey)
	case strings.ContainsFunc(key, unicode.IsControl):
		problem = "has a control character in it"
	default:
		return nil
	}
	return &dialect.Error{Kind: dialect.InvalidField, Field: keyHeader, Problem: problem}
}

// Decoding and cutting a large request needs several times the memory that the request
// occupies afterwards, while it waits for the store. Therefore only turnsAtOnce large
// requests are decoded or cut at the same time. Small requests do not wait for large
// ones.
const (
	turnsAtOnce = 2
	turnBody    = 64 << 10 // a body of more bytes is large
	turnItems   = 4 << 10  // a task of more items is large
)

// inTurn calls do. If the request is large, it first waits for a turn or until ctx
// ends. The function do must not wait for the store or the network.
func inTurn[T any](ctx context.Context, turns *semaphore.Weighted, large bool, do func() (T, error)) (T, error) {
	if large {
		if turns.Acquire(ctx, 1) != nil {
			var none T
			return none, context.Cause(ctx)
		}
		defer turns.Release(1)
	}
	return do()
}

func (s *submitter) cut(ctx context.Context, operations []procfleet.Operation, sub *procfleet.Submission) (*plan, error) {
	g, err := s.groupedPolicy(ctx, sub, operations)
	if err != nil {
		return nil, err
	}
	items := 0
	for i := range operations {
		items += len(operations[i].Targets)
	}
	return inTurn(ctx, s.turns, items > turnItems, func() (*plan, error) { return cut(operations, g) })
}
