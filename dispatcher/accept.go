package dispatcher

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// keyHeader carries a caller's idempotency key.
const keyHeader = "Idempotency-Key"

// maxIdempotencyKey bounds what the store must remember of a key.
const maxIdempotencyKey = 255

// acceptance is a request to make a task, through whichever door it came.
type acceptance struct {
	call   string // full name
	who    caller
	decode func(*dialect.Request) (procfleet.Submission, error)
	in     *dialect.Request
	terms  terms // with the caller's key
	// ownKey, if set, takes the place of the key of a caller who gives none;
	// no other request may have it.
	ownKey string
	origin procfleet.Origin
	start  time.Time
	log    logrus.FieldLogger
}

// accept makes a task of a request, or finds the one that was made of it
// before, and returns when the task is durable.
func (a *api) accept(ctx context.Context, r *acceptance) (procfleet.Task, error) {
	if err := checkKey(r.terms.key); err != nil {
		return procfleet.Task{}, err
	}
	sub, err := inTurn(ctx, a.submitter.turns, len(r.in.Body) > turnBody, func() (procfleet.Submission, error) { return r.decode(r.in) })
	if err != nil {
		return procfleet.Task{}, err
	}
	if err := r.who.maySubmit(&sub); err != nil {
		return procfleet.Task{}, err
	}
	r.in.Body = nil // the submission has all of it; big ones need the memory
	sub.Dialect, sub.Application = r.call, r.who.code
	terms := r.terms
	terms.origin = r.origin
	if terms.key == "" {
		terms.key, terms.sole = r.ownKey, true
	}
	task, err := a.submitter.submit(ctx, sub, terms)
	if err != nil {
		return procfleet.Task{}, err
	}
	a.noteAccepted(ctx, &task, r.who, r.log, r.start)
	return task, nil
}

// noteAccepted counts and logs a task that was accepted, or found again.
func (a *api) noteAccepted(ctx context.Context, task *procfleet.Task, who caller, log logrus.FieldLogger, start time.Time) {
	a.measures.accepted(ctx, task.Dialect, task.Items)
	log.WithFields(logrus.Fields{
		"task": task.ID, "application": who.code, "user": who.user, "items": task.Items, "elapsed_ms": time.Since(start).Milliseconds(),
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
