package dispatcher

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"

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

// While a long request is read and cut it takes several times the memory that
// it takes afterwards, when it waits for the store. So few have a turn at that
// at a time; short ones need none, and do not wait for the long.
const (
	turnsAtOnce = 2
	turnBody    = 64 << 10 // bytes of a body from which on it needs one
	turnItems   = 4 << 10  // items of a task from which on it does
)

// inTurn does what only takes the processor, in its turn if it is long.
func inTurn[T any](ctx context.Context, room *semaphore.Weighted, long bool, do func() (T, error)) (T, error) {
	if long {
		if room.Acquire(ctx, 1) != nil {
			var none T
			return none, context.Cause(ctx)
		}
		defer room.Release(1)
	}
	return do()
}

func (s *submitter) cut(ctx context.Context, operations []procfleet.Operation) (*plan, error) {
	items := 0
	for i := range operations {
		items += len(operations[i].Targets)
	}
	return inTurn(ctx, s.turns, items > turnItems, func() (*plan, error) { return cut(operations) })
}

// notes makes notes of accepted tasks that no caller waits for. One that is not
// made, also since the dispatcher dies, is the sweep's to make.
type notes struct {
	room    chan struct{} // one for each note under way
	under   sync.WaitGroup
	timeout time.Duration
	log     logrus.FieldLogger
}

// notesAtOnce bounds what waits for a slow store.
const notesAtOnce = 256

func newNotes(cfg *Config) *notes {
	return &notes{room: make(chan struct{}, notesAtOnce), timeout: cfg.Timeouts.Accept, log: cfg.Log}
}

// later makes a note soon, or answers false if too many are under way.
func (n *notes) later(ctx context.Context, id procfleet.TaskID, note func(context.Context) error) bool {
	select {
	case n.room <- struct{}{}:
	default:
		return false
	}
	n.under.Go(func() {
		defer func() { <-n.room }()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.timeout)
		defer cancel()
		if err := note(ctx); err != nil {
			n.log.WithError(err).WithField("task", id).Warn("dispatched mark not stored, left to the sweep")
		}
	})
	return true
}

// wait returns when every note is made, or has failed.
func (n *notes) wait() { n.under.Wait() }
