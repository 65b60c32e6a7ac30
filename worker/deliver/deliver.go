// Package deliver pulls chunk references from the lanes of the broker and delivers the
// chunks: it begins a chunk in the store, requests that the agent of every host accepts
// its items, and stores the replies.
package deliver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/collect"
)

// Store has the calls to a task store that this package uses.
type Store interface {
	Begin(ctx context.Context, id procfleet.TaskID, chunk, upto int) (taskstore.Begun, error)
	Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error
	Away(ctx context.Context, id procfleet.TaskID, chunk int, items []int, sent bool) error
	ItemCancels(ctx context.Context, id procfleet.TaskID, chunk int) (taskstore.CanceledItems, error)
	ItemsCanceled(ctx context.Context, id procfleet.TaskID, chunk, seq int) error
	Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
	Republished(ctx context.Context, id procfleet.TaskID, chunk int, sequence uint64) error
	Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error)
	Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error)
}

// Points at which [agentlink.Link].Reached is called.
const (
	PointBegun           = "worker.begun"        // the chunk is begun, no command is sent
	PointRequested       = "worker.asked"        // the chunk's commands are sent
	PointAway            = "worker.away"         // hosts have no agent, and that their items wait is not stored
	PointBeforeDone      = "worker.before-done"  // all hosts replied, but completion is not stored
	PointCancelRequested = "worker.cancel-asked" // the requests to cancel a chunk's items are sent
	PointAfterDone       = "worker.after-done"   // the chunk is stored as done but not acknowledged
)

// Config holds the dependencies and settings of a [Deliverer].
type Config struct {
	*agentlink.Link
	Store       Store
	Claims      *agentlink.IDClaims
	Recorder    *collect.Recorder
	Rollouts    Rollouts
	Timing      Timing
	Pull        time.Duration      // time that one pull request for chunks waits at the server
	SmallChunks int                // chunks of small tasks in flight
	BigChunks   int                // chunks of big tasks in flight, over all lanes
	Items       int                // items in flight, for small and for big tasks each
	Parked      int                // items of parked chunks, plus 16 per chunk
	Log         logrus.FieldLogger // parent logger; New adds the component "worker.deliver"
}

// Rollouts releases the items of rollouts and publishes them.
type Rollouts interface {
	Advance(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error)
	Soon(id procfleet.TaskID)
}

// Deliverer delivers chunks. [New] returns one.
type Deliverer struct {
	cfg Config
	log logrus.FieldLogger

	acks       *ackExtender
	parked     *parkedLimiter
	small, big *inFlightLimit
	holds      *holds
	deliveries sync.WaitGroup
	pulling    atomic.Int32 // lanes whose consumer is open
	// reconnectedAt is when this worker last reconnected to the broker: missing replies
	// during a disconnect are not counted against the hosts.
	reconnectedAt atomic.Pointer[time.Time]
}

// New returns a deliverer that pulls nothing until [Deliverer.Run].
func New(cfg Config) *Deliverer {
	parked := newParkedLimiter(cfg.Parked, &cfg.Metrics.Parked)
	return &Deliverer{
		cfg: cfg, log: cfg.Log.WithField("component", "worker.deliver"),
		acks: newAckExtender(), parked: parked, holds: newHolds(),
		small: newInFlightLimit(cfg.SmallChunks, cfg.SmallChunks, cfg.Items, parked),
		big:   newInFlightLimit(cfg.BigChunks, maxBusyBig(), cfg.Items, parked),
	}
}

// Errors that end a delivery cleanly before every host has replied.
var (
	errOverdue    = errors.New("the task's deadline has passed")
	errRequeue    = errors.New("the worker stops, the chunk returns to the queue")
	errParkedFull = errors.New("the limit of parked chunks is reached")
)

// deliver handles one chunk reference until its ack or nak. It releases the slot.
func (d *Deliverer) deliver(ctx context.Context, msg jetstream.Msg, s *slot) {
	d.acks.add(msg)
	defer d.acks.remove(msg)
	defer s.release()
	d.cfg.Metrics.Chunks.Add(1)
	defer d.cfg.Metrics.Chunks.Add(-1)
	defer d.recoverPanic(msg)

	ref, err := bus.DecodeChunkRef(msg.Data())
	if err != nil {
		d.log.WithError(err).WithField("subject", msg.Subject()).Error("chunk reference dropped")
		d.logUnacknowledged(msg, msg.TermWithReason("not a chunk reference"))
		return
	}
	attempt := uint64(1)
	if meta, err := msg.Metadata(); err == nil {
		attempt = meta.NumDelivered
	}
	ctx, span := d.traceChunk(tracecontext.Extract(ctx, msg.Headers()), ref, attempt)
	defer func() { tracecontext.End(span, err) }()
	if attempt > maxDeliveries {
		d.logUnacknowledged(msg, d.isolate(ctx, ref, msg))
		return
	}
	if !s.admit(ref.Cloud) {
		d.postpone(ctx, msg, attempt)
		return
	}
	if err = s.acquireBusy(ctx); err == nil {
		err = d.deliverChunk(ctx, ref, s)
	}
	switch {
	case err == nil, errors.Is(err, errOverdue), errors.Is(err, taskstore.ErrNotFound):
		d.logUnacknowledged(msg, msg.Ack())
	case errors.Is(err, errHeld):
		d.dropHeld(ctx, ref, msg)
	case ctx.Err() != nil, errors.Is(err, errRequeue):
		d.requeue(ctx, msg)
	case errors.Is(err, errParkedFull), errors.Is(err, errUndecided):
		d.postpone(ctx, msg, attempt)
	default:
		tracecontext.Log(ctx, d.log).WithError(err).WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk}).Error("chunk not delivered, will be redelivered")
		d.logUnacknowledged(msg, d.retryLater(msg))
	}
}

// deliverChunk returns nil if the chunk needs no further delivery.
func (d *Deliverer) deliverChunk(ctx context.Context, ref bus.ChunkRef, s *slot) error {
	switch {
	case ref.Cancels:
		return d.cancelItems(ctx, ref)
	case ref.Advances:
		return d.cfg.Calls.Retry(ctx, func(ctx context.Context) error {
			_, err := d.cfg.Rollouts.Advance(ctx, ref.Task, taskstore.Advance{})
			return err
		})
	}
	begun, err := d.begin(ctx, ref)
	switch {
	case err != nil:
		return err
	case begun.Gate == taskstore.GateFinished:
		return d.storeDone(ctx, ref)
	case begun.Gate == taskstore.GateHeld:
		return errHeld
	case begun.Gate == taskstore.GateCanceled:
		return d.cancelChunk(ctx, ref, begun)
	case begun.Gate != taskstore.GateOpen:
		return nil
	}
	d.cfg.Reached(PointBegun)
	if err := s.acquireItems(ctx, len(begun.Open)); err != nil {
		return err
	}
	dl, err := d.newDelivery(ctx, ref, begun, s)
	if err != nil {
		return err
	}
	defer dl.trace.end()
	var unwatch func()
	dl.held, unwatch = d.holds.watch(ref.Task)
	defer unwatch()
	err = dl.run(ctx)
	if errors.Is(err, errOverdue) || errors.Is(err, errRequeue) || errors.Is(err, errParkedFull) || errors.Is(err, errHeld) {
		err = cmp.Or(dl.flush(ctx, false), err)
	}
	if err == nil {
		d.cfg.Reached(PointAfterDone)
	}
	return err
}

// storeDone stores that a chunk is done, after all its items have results. Otherwise
// the sweep would request its delivery repeatedly.
func (d *Deliverer) storeDone(ctx context.Context, ref bus.ChunkRef) error {
	return d.cfg.Calls.Retry(ctx, func(ctx context.Context) error {
		return d.cfg.Store.Delivered(ctx, ref.Task, ref.Chunk, nil, true)
	})
}

// begin begins a chunk in the store and removes from Open the items that an agent has
// accepted: if their results are lost, the sweep requests a resend.
func (d *Deliverer) begin(ctx context.Context, ref bus.ChunkRef) (*taskstore.Begun, error) {
	var begun taskstore.Begun
	err := d.cfg.Calls.Retry(ctx, func(ctx context.Context) (err error) {
		begun, err = d.cfg.Store.Begin(ctx, ref.Task, ref.Chunk, ref.Upto)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("begin chunk %s/%d: %w", ref.Task, ref.Chunk, err)
	}
	if begun.Gate == taskstore.GateOpen {
		begun.Open = slices.DeleteFunc(begun.Open, func(i int) bool { return slices.Contains(begun.Delivered, i) })
	}
	return &begun, nil
}
