package dispatcher

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/auth"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// keyHeader carries a caller's idempotency key.
const keyHeader = "Idempotency-Key"

// maxIdempotencyKey bounds what the store must remember of a key.
const maxIdempotencyKey = 255

// acceptance is an authorized submission, from HTTP or NATS.
type acceptance struct {
	call  string // full name
	who   auth.Caller
	sub   procfleet.Submission
	terms terms
	start time.Time
	log   logrus.FieldLogger
}

// decode checks the caller's idempotency key and decodes a submission.
func (a *api) decode(
	ctx context.Context, key string, decode func(*dialect.Request) (procfleet.Submission, error), in *dialect.Request,
) (procfleet.Submission, error) {
	if err := checkKey(key); err != nil {
		return procfleet.Submission{}, err
	}
	return inTurn(ctx, a.submitter.turns, len(in.Body) > turnBody, func() (procfleet.Submission, error) { return decode(in) })
}

// accept creates a task, or finds the one that an earlier request with the same
// key created, and returns when the task is durable.
func (a *api) accept(ctx context.Context, r *acceptance) (procfleet.Task, error) {
	r.sub.Dialect, r.sub.Application = r.call, r.who.Application
	task, err := a.submitter.submit(ctx, r.sub, r.terms)
	if err != nil {
		return procfleet.Task{}, err
	}
	a.noteAccepted(ctx, &task, r.who, r.log, r.start)
	return task, nil
}

// noteAccepted counts and logs a task that was accepted, or found again.
func (a *api) noteAccepted(ctx context.Context, task *procfleet.Task, who auth.Caller, log logrus.FieldLogger, start time.Time) {
	a.measures.accepted(ctx, task.Dialect, task.Items)
	log.WithFields(logrus.Fields{
		"task": task.ID, "application": who.Application, "user": who.User, "items": task.Items, "elapsed_ms": time.Since(start).Milliseconds(),
	}).Info("task accepted")
}

// checkKey refuses keys that HTTP cannot carry: those are for ourselves.
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
