package dispatcher

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/dispatcher/auth"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

// Delays after which rejected callers should retry.
const (
	retryFull        = 5 * time.Second // a queue must drain
	retryUnavailable = 2 * time.Second // a store or a broker must become available
)

// failed classifies an error and logs it. The details of an internal error appear only
// in the log; the caller receives the request id, which the log line contains.
func (a *api) failed(err error, log logrus.FieldLogger, id string, start time.Time) *dialect.Error {
	f := failure(err)
	a.noteRefusal(f, log, start)
	switch f.Kind {
	case dialect.Internal:
		log.WithError(err).Error("request failed")
		return &dialect.Error{Kind: dialect.Internal, Problem: "internal error, request " + id}
	case dialect.OutcomeUnknown:
		if f.Task != "" || a.unavailableLog.due(start) { // log each task that may run, but an outage only once per second
			log.WithField("task", f.Task).WithError(err).Warn("acceptance outcome unknown")
		}
	case dialect.Unavailable, dialect.StoreFull:
		if a.unavailableLog.due(start) { // during an outage every request fails
			log.WithError(err).Warn("requests rejected: dependency unavailable or store full")
		}
	default:
	}
	return f
}

// failure converts an error to a [*dialect.Error]. An unclassified error becomes an
// internal error.
func failure(err error) *dialect.Error {
	if f, ok := errors.AsType[*dialect.Error](err); ok {
		return f
	}
	if unknown, ok := errors.AsType[*OutcomeUnknownError](err); ok {
		problem := "whether task " + string(unknown.Task) + " was accepted is unknown: query it, or repeat the request with the same Idempotency-Key"
		return &dialect.Error{Kind: dialect.OutcomeUnknown, Problem: problem, Task: unknown.Task, RetryAfter: retryUnavailable}
	}
	if f := refusedEdit(err); f != nil {
		return f
	}
	if f := refusedTopology(err); f != nil {
		return f
	}
	switch {
	case errors.Is(err, audit.ErrNotKept): // before taskstore.ErrFull: the error of a full audit stream matches both
		return &dialect.Error{Kind: dialect.Unavailable, Problem: "the audit log cannot be written; nothing was accepted, try again later", RetryAfter: retryUnavailable}
	case errors.Is(err, bus.ErrFull):
		return &dialect.Error{Kind: dialect.Unavailable, Problem: "the queue is full; nothing was accepted, try again later", RetryAfter: retryFull}
	case errors.Is(err, errNotQueued):
		return &dialect.Error{Kind: dialect.Unavailable, Problem: "the queue cannot be reached; nothing was accepted, try again later", RetryAfter: retryUnavailable}
	case errors.Is(err, errNotRegistered):
		return &dialect.Error{Kind: dialect.Unavailable, Problem: "the process specs could not be registered; nothing was accepted, try again later", RetryAfter: retryUnavailable}
	case errors.Is(err, errNotStored):
		return &dialect.Error{Kind: dialect.Unavailable, Problem: "the task store is unavailable; nothing was done, repeat the request", RetryAfter: retryUnavailable}
	case errors.Is(err, taskstore.ErrNotFound):
		return &dialect.Error{Kind: dialect.NotFound, Problem: "there is no such task, or it has expired"}
	case errors.Is(err, taskstore.ErrCursor):
		return &dialect.Error{Kind: dialect.InvalidField, Field: "cursor", Problem: "is not the next of a page before"}
	case errors.Is(err, taskstore.ErrConflict):
		return &dialect.Error{Kind: dialect.Conflict, Field: "Idempotency-Key", Problem: "was used for another request"}
	case errors.Is(err, taskstore.ErrExpired):
		return &dialect.Error{Kind: dialect.Expired, Field: notAfterHeader, Problem: "has passed; nothing was done"}
	case errors.Is(err, taskstore.ErrFull):
		return &dialect.Error{Kind: dialect.StoreFull, Problem: "the task store is full; nothing was accepted, try again later", RetryAfter: retryFull}
	case errors.Is(err, taskstore.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &dialect.Error{Kind: dialect.Unavailable, Problem: "the task store is unavailable; try again later", RetryAfter: retryUnavailable}
	}
	return &dialect.Error{Kind: dialect.Internal, Problem: err.Error()}
}

// noteRefusal counts and logs a rejected caller. It logs every rejection of an
// authenticated caller, and at most one per second of unauthenticated callers.
func (a *api) noteRefusal(f *dialect.Error, log logrus.FieldLogger, start time.Time) {
	reason, is := auth.Refusals[f.Kind]
	if !is {
		return
	}
	a.authenticator.CountRefusal(reason)
	if f.Application != "" && f.Kind == dialect.Forbidden || a.refusalLog.due(start) {
		log.WithFields(logrus.Fields{"application": f.Application, "reason": reason, "detail": f.Error()}).Info("request rejected")
	}
}
