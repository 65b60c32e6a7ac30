// Package deliver pulls chunk references from the lanes of the broker and delivers the
// chunks: it begins a chunk in the store, requests that the agent of every host accepts
// its items, and stores the replies.
package deliver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/collect"
	"github.com/procfleet/procfleet/worker/storecall"
)

// Store has the calls to a task store that this package uses.
type Store interface {
	Begin(ctx context.Context, id procfleet.TaskID, chunk int) (taskstore.Begun, error)
	Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error
	Republished(ctx context.Context, id procfleet.TaskID, chunk int, sequence uint64) error
	Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error)
	Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error)
}

// Points at which [Config].Reached is called.
const (
	PointBegun      = "worker.begun"       // the chunk is begun, no command is sent
	PointAsked      = "worker.asked"       // the chunk's commands are sent
	PointBeforeDone = "worker.before-done" // all hosts replied, but completion is not stored
	PointAfterDone  = "worker.after-done"  // the chunk is stored as done but not acknowledged
)

// Config holds the dependencies and settings of a [Deliverer].
type Config struct {
	Store     Store
	Bus       *bus.Bus
	Link      *agentlink.Link
	Requester *agentlink.Requester
	Claims    *agentlink.IDClaims
	Recorder  *collect.Recorder
	// Tracer creates the spans of this worker, AgentTracer the spans of operations that
	// agents report; nil creates none.
	Tracer, AgentTracer trace.Tracer
	Timing              Timing
	Pull                time.Duration // time that one pull request for chunks waits at the server
	SmallChunks         int           // chunks of small tasks in flight
	BigChunks           int           // chunks of big tasks in flight, over all lanes
	Items               int           // items in flight, for small and for big tasks each
	Parked              int           // items of parked chunks, plus 16 per chunk
	Reached             func(point string)
	Log                 logrus.FieldLogger // parent logger; New adds the component "worker.deliver"
}

// Deliverer delivers chunks. [New] returns one.
type Deliverer struct {
	cfg Config
	log logrus.FieldLogger

	conn       *connection
	acks       *ackExtender
	parked     *parkedLimiter
	small, big *inFlightLimit
	deliveries sync.WaitGroup
	pulling    atomic.Int32 // lanes whose consumer is open
}

// New returns a deliverer that pulls nothing until [Deliverer.Run].
func New(cfg Config) *Deliverer {
	parked := newParkedLimiter(cfg.Parked, &cfg.Link.Metrics.Parked)
	return &Deliverer{
		cfg: cfg, log: cfg.Log.WithField("component", "worker.deliver"),
		conn: &connection{conn: cfg.Link.Conn, clock: cfg.Link.Clock}, acks: newAckExtender(), parked: parked,
		small: newInFlightLimit(cfg.SmallChunks, cfg.SmallChunks, cfg.Items, parked),
		big:   newInFlightLimit(cfg.BigChunks, maxBusyBig(), cfg.Items, parked),
	}
}

// maxDeliveries is the number of unfinished deliveries after which a chunk is assumed
// to cause the failures and is isolated.
const maxDeliveries = 5

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
	d.cfg.Link.Metrics.Chunks.Add(1)
	defer d.cfg.Link.Metrics.Chunks.Add(-1)
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
	case ctx.Err() != nil, errors.Is(err, errRequeue):
		d.requeue(ctx, msg)
	case errors.Is(err, errParkedFull):
		d.postpone(ctx, msg, attempt)
	default:
		tracecontext.Log(ctx, d.log).WithError(err).WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk}).Error("chunk not delivered, will be redelivered")
		d.logUnacknowledged(msg, msg.NakWithDelay(storecall.Jitter(d.cfg.Link.Calls.RetryMax)))
	}
}

// logUnacknowledged logs err if an ack was not sent, which causes a redelivery.
func (d *Deliverer) logUnacknowledged(msg jetstream.Msg, err error) {
	if err != nil {
		d.log.WithError(err).WithField("subject", msg.Subject()).Warn("chunk not acknowledged")
	}
}

// recoverPanic naks a chunk whose delivery panicked; maxDeliveries bounds the retries.
func (d *Deliverer) recoverPanic(msg jetstream.Msg) {
	r := recover()
	if r == nil {
		return
	}
	d.log.WithFields(logrus.Fields{"error": fmt.Sprint(r), "stack": string(debug.Stack())}).Error("chunk delivery panicked")
	d.logUnacknowledged(msg, msg.NakWithDelay(storecall.Jitter(d.cfg.Link.Calls.RetryMax)))
}

// deliverChunk returns nil if the chunk needs no further delivery.
func (d *Deliverer) deliverChunk(ctx context.Context, ref bus.ChunkRef, s *slot) error {
	begun, err := d.begin(ctx, ref)
	switch {
	case err != nil:
		return err
	case begun.Gate == taskstore.GateFinished:
		return d.storeDone(ctx, ref)
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
	err = dl.run(ctx)
	if errors.Is(err, errOverdue) || errors.Is(err, errRequeue) || errors.Is(err, errParkedFull) {
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
	return d.cfg.Link.Calls.Retry(ctx, func(ctx context.Context) error {
		return d.cfg.Store.Delivered(ctx, ref.Task, ref.Chunk, nil, true)
	})
}

// begin begins a chunk in the store and removes from Open the items that an agent has
// accepted: if their results are lost, the sweep requests a resend.
func (d *Deliverer) begin(ctx context.Context, ref bus.ChunkRef) (*taskstore.Begun, error) {
	var begun taskstore.Begun
	err := d.cfg.Link.Calls.Retry(ctx, func(ctx context.Context) (err error) {
		begun, err = d.cfg.Store.Begin(ctx, ref.Task, ref.Chunk)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("begin chunk %s/%d: %w", ref.Task, ref.Chunk, err)
	}
	begun.Open = slices.DeleteFunc(begun.Open, func(i int) bool { return slices.Contains(begun.Delivered, i) })
	return &begun, nil
}

// isolate ends the open items of a chunk that was delivered too often, so that the
// chunk is not redelivered forever.
func (d *Deliverer) isolate(ctx context.Context, ref bus.ChunkRef, msg jetstream.Msg) error {
	log := d.log.WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk})
	begun, err := d.begin(ctx, ref)
	if err != nil {
		log.WithError(err).Error("poisoned chunk not ended, will be redelivered")
		return msg.NakWithDelay(storecall.Jitter(d.cfg.Link.Calls.RetryMax))
	}
	if begun.Gate != taskstore.GateOpen {
		return msg.Ack()
	}
	results := make([]procfleet.Result, len(begun.Open))
	text := fmt.Sprintf("%d deliveries of this part of the task broke off, outcome unknown: see the workers' logs, query the status, then repeat if needed", maxDeliveries)
	for n, i := range begun.Open {
		results[n] = agentlink.ServerResult(begun.Chunk.First+i, procfleet.CodeFailed, procfleet.ReasonCommandFailed, text, d.cfg.Link.Clock.Now())
	}
	if _, err = d.cfg.Recorder.Record(ctx, ref.Task, results); err == nil {
		err = d.storeDone(ctx, ref)
	}
	if err != nil {
		log.WithError(err).Error("poisoned chunk not ended, will be redelivered")
		return msg.NakWithDelay(storecall.Jitter(d.cfg.Link.Calls.RetryMax))
	}
	log.WithField("items", len(results)).Error("chunk isolated after too many deliveries")
	return msg.TermWithReason("delivered too often")
}

// requeueTimeout bounds requeueing a chunk, even after the drain timeout.
const requeueTimeout = 2 * time.Second

// requeue publishes a chunk again at the end of its lane, and acknowledges the old
// message. The new message starts with a redelivery count of zero.
func (d *Deliverer) requeue(ctx context.Context, msg jetstream.Msg) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requeueTimeout)
	defer cancel()
	if err := d.republish(tracecontext.Extract(ctx, msg.Headers()), msg.Data()); err != nil {
		d.log.WithError(err).WithField("subject", msg.Subject()).Warn("chunk not requeued, will be redelivered")
		d.logUnacknowledged(msg, msg.Nak())
		return
	}
	d.logUnacknowledged(msg, msg.Ack())
}

// postpone naks a chunk with a delay that doubles each time. Before the redeliveries
// reach maxDeliveries, it requeues the chunk, which resets the count.
func (d *Deliverer) postpone(ctx context.Context, msg jetstream.Msg, attempt uint64) {
	if attempt >= maxDeliveries-1 {
		d.requeue(ctx, msg)
		return
	}
	d.logUnacknowledged(msg, msg.NakWithDelay(storecall.Jitter(d.cfg.Timing.Postpone<<(attempt-1))))
}

func (d *Deliverer) republish(ctx context.Context, data []byte) error {
	ref, err := bus.DecodeChunkRef(data)
	if err != nil {
		return err
	}
	// The time gives the message a new id: the stream drops duplicate ids.
	sequences, err := d.cfg.Bus.PublishChunks(ctx, []bus.ChunkRef{ref}, strconv.FormatInt(d.cfg.Link.Clock.Now().UnixMilli(), 10))
	if err != nil {
		return err
	}
	if err := d.cfg.Store.Republished(ctx, ref.Task, ref.Chunk, sequences[0]); err != nil {
		// The chunk is queued; the sweep may queue a duplicate, which is harmless.
		d.log.WithError(err).WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk}).Warn("chunk sequence not stored")
	}
	return nil
}
