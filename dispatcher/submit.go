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
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
)

// Acceptance is the part of a task store that acceptance uses.
type Acceptance interface {
	taskstore.Acceptance
	Registry
	Selectable
	resolver
	Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error)
}

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
var errWithdrawn = errors.New("the task was taken back")

// firstRound is the publication round of acceptance. A repeated request publishes in
// the same round, so that the stream drops the duplicates.
const firstRound = "0"

// TooLargeError means that a submission exceeds a limit.
type TooLargeError struct{ Problem string }

func (e *TooLargeError) Error() string { return e.Problem }

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
	store    Acceptance
	queue    Queue
	cfg      Config
	bigLanes atomic.Uint64
	turns    *semaphore.Weighted // limits decoding and cutting of large requests
	marks    *marks
}

func newSubmitter(store Acceptance, queue Queue, cfg Config) *submitter {
	s := &submitter{store: store, queue: queue, cfg: cfg, turns: semaphore.NewWeighted(turnsAtOnce), marks: newMarks(&cfg)}
	// A random start lets dispatchers that start together begin with different lanes.
	s.bigLanes.Store(rand.Uint64()) //nolint:gosec // the lane is no secret
	return s
}

// terms are the conditions under which a submission is accepted.
type terms struct {
	key string // the idempotency key, or ""
	// sole means that the key belongs to one message. A redelivery of the message then
	// counts as a repeat even if a newer dispatcher decodes the message differently.
	sole     bool
	notAfter time.Time // latest creation time, by the store's clock; zero means no limit
	// label returns the text by which the caller's dialect names a host that only a
	// registration names; nil means [procfleet.Host.String].
	label func(procfleet.Host) string
	// unregistered means that the code that submits registers the specs itself, after
	// the task was created.
	unregistered bool
	origin       procfleet.Origin
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

// items returns a [*TooLargeError] if n exceeds the maximum number of items of one
// request.
func (l *Limits) items(n int) error {
	if n <= l.Items {
		return nil
	}
	return &TooLargeError{fmt.Sprintf(
		"%d processes on hosts in one request, at most %d are allowed; divide the request", n, l.Items)}
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
		return task, s.createFailed(ctx, task.ID, fmt.Errorf("%w: %w", errNotStored, err))
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
	var hash string
	if t.key != "" && !t.sole {
		var err error
		if hash, err = bodyHash(sub); err != nil { // of the submission as it was sent: agents may move between hosts, and registrations may change
			return drafted{}, err
		}
	}
	if err := s.resolve(ctx, sub.Operations); err != nil {
		return drafted{}, err
	}
	operations, refusal := s.specified(ctx, &sub, t.label)
	if refusal != nil {
		if t.key == "" || !refuses(refusal) {
			return drafted{}, refusal
		}
		operations, t.notAfter = specifying(sub.Operations), never
	}
	p, err := s.cut(ctx, operations)
	if err != nil {
		return drafted{}, err
	}
	if refusal != nil {
		p.chunks = nil
	}
	if t.unregistered {
		p.definitions = nil
	}
	return drafted{definitions: p.definitions, refusal: refusal, Draft: taskstore.Draft{
		Chunks:         p.chunks,
		Lane:           s.lane(ctx, p.items),
		Timeout:        timeout(sub.Timeout, p.longest, s.cfg.Slack),
		Retention:      s.cfg.Retention,
		Actions:        p.actions,
		Dialect:        sub.Dialect,
		Application:    sub.Application,
		Business:       sub.Business,
		Callback:       sub.Callback,
		Origin:         t.origin,
		IdempotencyKey: t.key,
		BodyHash:       hash,
		NotAfter:       t.notAfter,
		Trace:          tracecontext.Text(ctx),
	}}, nil
}

// refuses reports whether an error concerns the request itself.
func refuses(err error) bool {
	_, invalid := errors.AsType[*dialect.Error](err)
	_, large := errors.AsType[*TooLargeError](err)
	return invalid || large
}

// bodyHash returns a digest of a submission that does not depend on the form of its
// body. Credentials are not part of a submission. Omitted members count as their
// defaults, as in older dispatchers, which may have created the task of a repeated
// request.
func bodyHash(sub procfleet.Submission) (string, error) {
	sub.Operations = slices.Clone(sub.Operations)
	for i := range sub.Operations {
		sub.Operations[i].Over = nil
	}
	text, err := json.Marshal(sub)
	if err != nil {
		return "", fmt.Errorf("encode the submission: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// resolve fills in the hosts of targets that name an agent.
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

func chunkRefs(id procfleet.TaskID, draft drafted) []bus.ChunkRef {
	refs := make([]bus.ChunkRef, len(draft.Chunks))
	for i := range draft.Chunks {
		refs[i] = bus.ChunkRef{Task: id, Chunk: i, Lane: draft.Lane, Cloud: draft.Chunks[i].Cloud}
	}
	return refs
}

// createFailed handles an error of the store. With an id the task may exist
// nevertheless, and the sweep would run it, so createFailed rejects it.
func (s *submitter) createFailed(ctx context.Context, id procfleet.TaskID, err error) error {
	if id == "" {
		return err
	}
	return s.withdraw(ctx, id, err)
}

// dispatch audits a new task, registers its specs, queues its chunks and marks it as
// dispatched. After an error it rejects the task. It writes the audit record first,
// because agents may begin as soon as the chunks are queued.
func (s *submitter) dispatch(ctx context.Context, task *procfleet.Task, draft drafted) error {
	err := s.audit(ctx, task, draft.Chunks)
	if err == nil {
		s.cfg.Reached(PointAudited)
		err = s.register(ctx, draft.definitions, time.Time{})
	}
	var sequences []uint64
	if err == nil {
		s.cfg.Reached(PointRegistered)
		sequences, err = s.enqueue(ctx, chunkRefs(task.ID, draft))
	}
	if err == nil {
		err = s.markDispatched(ctx, task.ID, sequences, draft.IdempotencyKey)
	}
	if err != nil {
		return s.withdraw(ctx, task.ID, err)
	}
	return nil
}

// markDispatched marks a new task as queued, so that neither the sweep nor a repeated
// request queues it again. Without a key no request can repeat it, so the mark is
// written in the background.
func (s *submitter) markDispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64, key string) error {
	mark := func(ctx context.Context) error { return s.store.Dispatched(ctx, id, sequences) }
	if key == "" && s.marks.later(ctx, id, mark) {
		return nil
	}
	if err := mark(ctx); err != nil {
		return fmt.Errorf("%w: mark it as queued: %w", errNotQueued, err)
	}
	return nil
}

// register registers the specs of operations that were accepted at the time asked; zero
// means now. A task that is rejected later leaves its registrations, because its specs
// are valid.
func (s *submitter) register(ctx context.Context, ds []catalog.Definition, asked time.Time) error {
	if len(ds) == 0 {
		return nil
	}
	for i := range ds {
		ds[i].Asked = asked
	}
	if _, err := s.store.Register(ctx, ds, true); err != nil {
		return fmt.Errorf("%w: %w", errNotRegistered, err)
	}
	return nil
}

func (s *submitter) enqueue(ctx context.Context, refs []bus.ChunkRef) ([]uint64, error) {
	sequences, err := s.queue.PublishChunks(ctx, refs, firstRound)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotQueued, err)
	}
	s.cfg.Reached(PointPublished)
	return sequences, nil
}

// withdraw rejects a task whose acceptance failed, and returns cause. It returns nil if
// the task can no longer be rejected, because an agent has begun it, or a repeated
// request or the sweep has queued it. Such a task is accepted, and the sweep completes
// it.
func (s *submitter) withdraw(ctx context.Context, id procfleet.TaskID, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeouts.Accept)
	defer cancel()
	rejected, err := s.store.Reject(ctx, id, "the task could not be stored and queued in time")
	switch {
	case err != nil:
		return &OutcomeUnknownError{Task: id, Err: errors.Join(cause, fmt.Errorf("reject it: %w", err))}
	case rejected:
		return cause
	}
	return nil
}

// again completes the acceptance of a task that an earlier request created: it audits,
// registers and queues the task if the first dispatcher did not. The first dispatcher
// may still be running or may have replied, so again rejects nothing, and does not
// replace newer registrations.
func (s *submitter) again(ctx context.Context, task procfleet.Task, draft drafted) error {
	if task.Dispatched || task.State != procfleet.TaskAccepted {
		return nil
	}
	if err := s.audit(ctx, &task, draft.Chunks); err != nil {
		return &OutcomeUnknownError{Task: task.ID, Err: err}
	}
	if err := s.register(ctx, draft.definitions, task.CreatedAt); err != nil {
		return &OutcomeUnknownError{Task: task.ID, Err: err}
	}
	refs := make([]bus.ChunkRef, task.Chunks)
	for i := range refs {
		items, err := s.store.Chunk(ctx, task.ID, i)
		if err != nil {
			return &OutcomeUnknownError{Task: task.ID, Err: fmt.Errorf("read chunk %d: %w", i, err)}
		}
		refs[i] = bus.ChunkRef{Task: task.ID, Chunk: i, Lane: task.Lane}
		if len(items) > 0 {
			refs[i].Cloud = items[0].Item.Target.Host.Cloud
		}
	}
	sequences, err := s.enqueue(ctx, refs)
	if err == nil {
		err = s.store.Dispatched(ctx, task.ID, sequences)
	}
	switch {
	case errors.Is(err, taskstore.ErrRejected):
		return errWithdrawn
	case err != nil:
		return &OutcomeUnknownError{Task: task.ID, Err: err}
	}
	return nil
}
