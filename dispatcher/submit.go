package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/policycache"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
)

// Queue publishes references to chunks for workers; see [bus.Bus].
type Queue interface {
	QuietestLane(ctx context.Context, turn uint64) (procfleet.Lane, error)
	PublishChunks(ctx context.Context, refs []bus.ChunkRef, round string) (sequences []uint64, err error)
}

// errNotStored means that the store did not store the task, or that the task was
// rejected after an uncertain write.
var errNotStored = errors.New("the task was not stored")

// errNotQueued means that a task was rejected because its chunks could not be queued.
var errNotQueued = errors.New("the task was not queued")

// errNotRegistered means that a task was rejected because the specs of its
// operations could not be registered.
var errNotRegistered = errors.New("the task was not registered")

// errWithdrawn means that a repeated request found a task which was rejected before the
// repeat could queue its chunks.
var errWithdrawn = errors.New("the task was rejected by the dispatcher that created it")

// tooLarge returns the error for a request that exceeds a limit.
func tooLarge(format string, args ...any) *dialect.Error {
	return &dialect.Error{Kind: dialect.TooLarge, Problem: fmt.Sprintf(format, args...)}
}

// OutcomeUnknownError means that neither the acceptance nor the rejection of a task
// could be confirmed. The task may run.
type OutcomeUnknownError struct {
	Task procfleet.TaskID
	Err  error
}

func (e *OutcomeUnknownError) Error() string {
	return fmt.Sprintf("whether task %s was accepted is unknown: %v", e.Task, e.Err)
}

func (e *OutcomeUnknownError) Unwrap() error { return e.Err }

// submitter accepts submissions. It is safe for concurrent use.
type submitter struct {
	store    Store
	queue    Queue
	cfg      Config
	bigLanes atomic.Uint64
	turns    *semaphore.Weighted // limits decoding and cutting of large requests
	marks    *marks
	policies *policycache.Cache
}

func newSubmitter(store Store, queue Queue, cfg Config) *submitter {
	s := &submitter{
		store: store, queue: queue, cfg: cfg, turns: semaphore.NewWeighted(turnsAtOnce), policies: policycache.New(store),
		marks: &marks{timeout: cfg.Timeouts.Accept, log: cfg.Log},
	}
	s.marks.running.SetLimit(marksAtOnce)
	// A random start lets dispatchers that start together begin with different lanes.
	s.bigLanes.Store(rand.Uint64()) //nolint:gosec // the lane is no secret
	return s
}

// terms are the conditions under which a submission is accepted.
type terms struct {
	key string // the idempotency key, or ""
	// sole means that the key belongs to one message. A redelivery of the message then
	// counts as a repeat even if another build decodes the message differently.
	sole bool
	// hash, if not empty, is the digest of the request, in place of that of the submission.
	hash     string
	retryOf  procfleet.TaskID // task whose items the new one repeats
	notAfter time.Time        // latest creation time, by the store's clock; zero means no limit
	// label returns the text by which the caller's dialect names a host that only a
	// registration names; nil means [procfleet.Host.String].
	label func(procfleet.Host) string
	// unregistered means that the code that submits registers the specs itself, after
	// the task was created.
	unregistered bool
	// internal means that a change of registrations needs the submission. No stored rollout
	// policy and no maintenance window applies to it.
	internal bool
	origin   procfleet.Origin
}

// drafted is a draft with the specs that its acceptance registers.
type drafted struct {
	taskstore.Draft
	definitions []catalog.Definition
	// refusal is the error that prevents creating a task from the submission now. In
	// that case the draft only serves to find the task of an earlier request with the
	// same key.
	refusal error
}

// never is the NotAfter of a draft that must not create a task.
var never = time.Unix(0, 0)

// submit creates a task from a submission and returns when the task is durable:
// stored, registered and queued. With an idempotency key, a repeat by the same
// application returns the task of the first request.
//
// After a [*OutcomeUnknownError] the task may run; after any other error nothing was
// done and nothing will be done.
func (s *submitter) submit(ctx context.Context, sub procfleet.Submission, t terms) (task procfleet.Task, err error) {
	ctx, done := s.traced(ctx, &sub)
	defer func() { done(&task, err) }()
	if err := s.cfg.Limits.items(sub.Items()); err != nil {
		return procfleet.Task{}, err
	}
	draft, err := s.draft(ctx, sub, t)
	if errors.Is(err, taskstore.ErrUnavailable) {
		return procfleet.Task{}, fmt.Errorf("%w: %w", errNotStored, err)
	}
	if err != nil {
		return procfleet.Task{}, err
	}
	if err := context.Cause(ctx); err != nil {
		return procfleet.Task{}, fmt.Errorf("the caller disconnected: %w", err)
	}
	// From here on the task may exist, so the remaining steps must not end when the
	// caller disconnects.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeouts.Accept)
	defer cancel()
	for {
		task, err := s.accept(ctx, draft)
		if !errors.Is(err, errWithdrawn) {
			return task, err
		}
		// The rejection freed the key, so the next attempt creates the task.
	}
}

func (l *Limits) items(n int) error {
	if n <= l.Items {
		return nil
	}
	return tooLarge(
		"%d processes on hosts in one request, at most %d are allowed; divide the request", n, l.Items)
}

// accept stores, registers and queues a draft. If the task exists, accept completes its
// acceptance instead. It returns errWithdrawn if the dispatcher that created the task
// rejected it in the meantime.
func (s *submitter) accept(ctx context.Context, draft drafted) (procfleet.Task, error) {
	task, created, err := s.store.Create(ctx, draft.Draft)
	switch {
	case draft.refusal != nil && errors.Is(err, taskstore.ErrExpired):
		return task, draft.refusal
	case errors.Is(err, taskstore.ErrConflict), errors.Is(err, taskstore.ErrExpired), errors.Is(err, taskstore.ErrFull):
		return task, err
	case err != nil:
		err = fmt.Errorf("%w: %w", errNotStored, err)
		if task.ID == "" {
			return task, err
		}
		return task, s.withdraw(ctx, task.ID, err) // the task may exist nevertheless, and the sweep would run it
	}
	s.cfg.Reached(PointStored)
	if created {
		return task, s.dispatch(ctx, &task, draft)
	}
	return task, s.again(ctx, task, draft)
}

// draft resolves agent ids, expands operations that refer to registrations or the
// catalog, cuts the submission into chunks and computes its timeout. If the submission
// has a key, a rejected expansion is not an error yet: registrations and catalog may
// have changed since the first request with that key, and its task may exist.
func (s *submitter) draft(ctx context.Context, sub procfleet.Submission, t terms) (drafted, error) {
	hash := t.hash
	if hash == "" && t.key != "" && !t.sole {
		var err error
		if hash, err = bodyHash(&sub); err != nil { // of the submission as it was sent: agents may move between hosts, and registrations may change
			return drafted{}, err
		}
	}
	if err := s.resolve(ctx, sub.Operations); err != nil {
		return drafted{}, err
	}
	operations, refusal := s.specified(ctx, &sub, t.label)
	var windows map[string][]string
	if refusal == nil && !t.internal {
		windows, refusal = s.policed(ctx, &sub, operations)
	}
	if refusal != nil {
		if t.key == "" || !refuses(refusal) {
			return drafted{}, refusal
		}
		operations, t.notAfter = slices.DeleteFunc(slices.Clone(sub.Operations), indirect), never
	}
	p, err := s.cut(ctx, operations, &sub)
	if err != nil {
		return drafted{}, err
	}
	if refusal == nil && p.refusal != nil {
		if t.key == "" {
			return drafted{}, p.refusal
		}
		refusal, t.notAfter = p.refusal, never
	}
	if refusal != nil {
		p.chunks = nil
	}
	if t.unregistered {
		p.definitions = nil
	}
	t.origin.Override = sub.Override
	limit := timeout(sub.Timeout, p.longest, s.cfg.Slack)
	if p.rollout != nil {
		p.definitions = nil // workers register the specs of the hosts that they release
		p.rollout.UnitTimeout, limit = limit, max(limit, sub.Rollout.TaskTimeout())
		p.rollout.Windows = windows
		if wait := p.rollout.Queue; wait > 0 {
			limit = max(limit, wait+p.rollout.UnitTimeout)
		}
	}
	return drafted{definitions: p.definitions, refusal: refusal, Draft: taskstore.Draft{
		Chunks:         p.chunks,
		Lane:           s.lane(ctx, p.items),
		Timeout:        limit,
		Rollout:        p.rollout,
		Retention:      s.cfg.Retention,
		Actions:        p.actions,
		Dialect:        sub.Dialect,
		Application:    sub.Application,
		Business:       sub.Business,
		Callback:       sub.Callback,
		Origin:         t.origin,
		RetryOf:        t.retryOf,
		IdempotencyKey: t.key,
		BodyHash:       hash,
		NotAfter:       t.notAfter,
		Trace:          tracecontext.Text(ctx),
	}}, nil
}

func refuses(err error) bool {
	_, invalid := errors.AsType[*dialect.Error](err)
	return invalid
}

// bodyHash returns a digest of a submission that does not depend on the form of its
// body. Credentials are not part of a submission.
func bodyHash(sub *procfleet.Submission) (string, error) {
	text, err := json.Marshal(sub)
	if err != nil {
		return "", fmt.Errorf("encode the submission: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

func (s *submitter) resolve(ctx context.Context, operations []procfleet.Operation) error {
	lists := make([][]procfleet.Target, len(operations))
	for i := range operations {
		lists[i] = operations[i].Targets
	}
	return resolve(ctx, s.store, lists...)
}

// laneWait is the maximum time to determine the lane with the fewest waiting messages.
const laneWait = time.Second

// lane returns the lane for a task of the given number of items. For a big task it is
// the lane with the fewest waiting messages, or the next lane in turn if the queue does
// not report them in time.
func (s *submitter) lane(ctx context.Context, items int) procfleet.Lane {
	if items <= procfleet.SmallTask {
		return procfleet.LaneSmall
	}
	turn := s.bigLanes.Add(1)
	ctx, cancel := context.WithTimeout(ctx, laneWait)
	defer cancel()
	lane, err := s.queue.QuietestLane(ctx, turn)
	if err != nil {
		return procfleet.BigLane(turn) // if the queue is unavailable, PublishChunks returns the error
	}
	return lane
}
