// Package deliver takes chunk references from the lanes of the broker and delivers
// the chunks: it begins a chunk in the store, requests that the agent of every host
// accepts its items, and stores what they reply.
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

// Store is what this package needs of a task store.
type Store interface {
	Begin(ctx context.Context, id procfleet.TaskID, chunk int) (taskstore.Begun, error)
	Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error
	Republished(ctx context.Context, id procfleet.TaskID, chunk int, sequence uint64) error
	Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error)
	Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error)
}

// Points at which [Config].Reached is called.
const (
	PointBegun      = "worker.begun"       // a chunk was begun, no command sent
	PointAsked      = "worker.asked"       // its commands are sent
	PointBeforeDone = "worker.before-done" // all hosts replied, nothing stored
	PointAfterDone  = "worker.after-done"  // stored as done, not acknowledged
)

// Config is what a deliverer is made of.
type Config struct {
	Store     Store
	Bus       *bus.Bus
	Link      *agentlink.Link
	Requester *agentlink.Requester
	Claims    *agentlink.IDClaims
	Recorder  *collect.Recorder
	// Tracer makes the spans of this worker, AgentTracer those of what agents
	// report; nil makes none.
	Tracer, AgentTracer trace.Tracer
	Timing              Timing
	Pull                time.Duration // how long one request for chunks waits at the server
	SmallChunks         int           // in flight of small tasks
	BigChunks           int           // in flight of big tasks, all lanes together
	Items               int           // in flight of each of the two
	Parked              int           // items of parked chunks, each chunk counting 16 more
	Reached             func(point string)
	Log                 logrus.FieldLogger // gets the component "worker.deliver"
}

// Deliverer delivers chunks. Make one with [New].
type Deliverer struct {
	cfg Config
	log logrus.FieldLogger

	conn       *connection
	acks       *ackExtender
	parked     *parkedLimiter
	small, big *inFlightLimit
	deliveries sync.WaitGroup
	pulling    atomic.Int32 // lanes whose consumer was found
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

// maxDeliveries is how often a chunk may be delivered without being finished
// before it is considered the cause.
const maxDeliveries = 5

// Errors that end a delivery in good order before every host has replied.
var (
	errOverdue    = errors.New("the task's deadline has passed")
	errRequeue    = errors.New("the worker stops, the chunk returns to the queue")
	errParkedFull = errors.New("the limit of parked chunks is reached")
)

// deliver handles one chunk reference from begin to acknowledgement. It releases
// the slot.
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

// logUnacknowledged logs that an acknowledgement was not sent; the server
// redelivers the chunk then.
func (d *Deliverer) logUnacknowledged(msg jetstream.Msg, err error) {
	if err != nil {
		d.log.WithError(err).WithField("subject", msg.Subject()).Warn("chunk not acknowledged")
	}
}

// recoverPanic has a chunk redelivered whose delivery panicked, up to maxDeliveries
// times.
func (d *Deliverer) recoverPanic(msg jetstream.Msg) {
	r := recover()
	if r == nil {
		return
	}
	d.log.WithFields(logrus.Fields{"error": fmt.Sprint(r), "stack": string(debug.Stack())}).Error("chunk delivery panicked")
	d.logUnacknowledged(msg, msg.NakWithDelay(storecall.Jitter(d.cfg.Link.Calls.RetryMax)))
}

// deliverChunk returns nil when the chunk needs no further delivery.
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

// storeDone stores a chunk as done whose items all have their results: else the
// sweep would have it delivered repeatedly.
func (d *Deliverer) storeDone(ctx context.Context, ref bus.ChunkRef) error {
	return d.cfg.Link.Calls.Retry(ctx, func(ctx context.Context) error {
		return d.cfg.Store.Delivered(ctx, ref.Task, ref.Chunk, nil, true)
	})
}

// begin begins a chunk in the store. It leaves only items that no agent accepted in
// Open: the sweep requests the results of the others if they are lost.
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

// isolate ends the items of a chunk that was delivered too often, so that it is not
// redelivered for ever.
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

// requeueTimeout bounds requeueing a chunk, also when the worker's time is up.
const requeueTimeout = 2 * time.Second

// requeue publishes a chunk again, behind the others of its lane. It is then no
// redelivery, of which too many would count against it.
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

// postpone has a chunk redelivered after a pause, longer each time. Before its
// redeliveries would count as failed ones, it requeues the chunk, which counts from
// one again.
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
	// The time makes it another message than the first, which the stream would drop
	// as a duplicate.
	sequences, err := d.cfg.Bus.PublishChunks(ctx, []bus.ChunkRef{ref}, strconv.FormatInt(d.cfg.Link.Clock.Now().UnixMilli(), 10))
	if err != nil {
		return err
	}
	if err := d.cfg.Store.Republished(ctx, ref.Task, ref.Chunk, sequences[0]); err != nil {
		// It is queued; the sweep may queue it once more, which is harmless.
		d.log.WithError(err).WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk}).Warn("chunk sequence not stored")
	}
	return nil
}
