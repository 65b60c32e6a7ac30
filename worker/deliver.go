package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
)

// deliverer takes chunk references from the lanes and delivers the chunks.
type deliverer struct {
	store    Store
	bus      *bus.Bus
	asker    *asker
	believer *believer
	claims   *idClaims
	clock    *clock
	link     *link
	held     *held
	recorder *recorder
	metrics  *metrics
	tracer   trace.Tracer
	agents   trace.Tracer // of what agents did
	timing   *Timing
	reached  func(string)
	log      logrus.FieldLogger
}

// maxDeliveries is how often a chunk may come without having been finished
// before it is taken for the cause.
const maxDeliveries = 5

// deliver handles one chunk reference from begin to acknowledgement. It gives
// its place in the lane back.
func (d *deliverer) deliver(ctx context.Context, msg jetstream.Msg, at *place) {
	d.held.add(msg)
	defer d.held.remove(msg)
	defer at.leave()
	d.metrics.chunks.Add(1)
	defer d.metrics.chunks.Add(-1)
	defer d.barrier(msg)

	ref, err := bus.DecodeChunkRef(msg.Data())
	if err != nil {
		d.log.WithError(err).WithField("subject", msg.Subject()).Error("chunk reference dropped")
		d.answer(msg, msg.TermWithReason("not a chunk reference"))
		return
	}
	attempt := uint64(1)
	if meta, err := msg.Metadata(); err == nil {
		attempt = meta.NumDelivered
	}
	ctx, span := d.traceChunk(tracecontext.Extract(ctx, msg.Headers()), ref, attempt)
	defer func() { tracecontext.End(span, err) }()
	if attempt > maxDeliveries {
		d.answer(msg, d.isolate(ctx, ref, msg))
		return
	}
	if !at.admit(ref.Cloud) {
		d.putOff(ctx, msg, attempt)
		return
	}
	if err = at.getBusy(ctx); err == nil {
		err = d.deliverChunk(ctx, ref, at)
	}
	switch {
	case err == nil, errors.Is(err, errOverdue), errors.Is(err, taskstore.ErrNotFound):
		d.answer(msg, msg.Ack())
	case ctx.Err() != nil, errors.Is(err, errGiveBack):
		d.giveBack(ctx, msg)
	case errors.Is(err, errNoRoom):
		d.putOff(ctx, msg, attempt)
	default:
		tracecontext.Log(ctx, d.log).WithError(err).WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk}).Error("chunk not delivered, will be redelivered")
		d.answer(msg, msg.NakWithDelay(jitter(d.timing.RetryMax)))
	}
}

// answer notes that an acknowledgement was not sent; the chunk comes again.
func (d *deliverer) answer(msg jetstream.Msg, err error) {
	if err != nil {
		d.log.WithError(err).WithField("subject", msg.Subject()).Warn("chunk not acknowledged")
	}
}

// barrier turns a panic over one chunk into another try, of which there are
// maxDeliveries.
func (d *deliverer) barrier(msg jetstream.Msg) {
	r := recover()
	if r == nil {
		return
	}
	d.log.WithFields(logrus.Fields{"error": fmt.Sprint(r), "stack": string(debug.Stack())}).Error("chunk delivery panicked")
	d.answer(msg, msg.NakWithDelay(jitter(d.timing.RetryMax)))
}

// deliverChunk returns nil when the chunk needs no further delivery.
func (d *deliverer) deliverChunk(ctx context.Context, ref bus.ChunkRef, at *place) error {
	begun, err := d.begin(ctx, ref)
	switch {
	case err != nil:
		return err
	case begun.Gate == taskstore.GateFinished:
		return d.noteDone(ctx, ref)
	case begun.Gate != taskstore.GateOpen:
		return nil
	}
	d.reached(PointBegun)
	if err := at.carry(ctx, len(begun.Open)); err != nil {
		return err
	}
	dl, err := d.newDelivery(ctx, ref, begun, at)
	if err != nil {
		return err
	}
	defer dl.trace.end()
	err = dl.run(ctx)
	if errors.Is(err, errOverdue) || errors.Is(err, errGiveBack) || errors.Is(err, errNoRoom) {
		err = cmp.Or(dl.tell(ctx, false), err)
	}
	if err == nil {
		d.reached(PointAfterDone)
	}
	return err
}

// noteDone ends a chunk whose items all have their results, as far as nobody
// did: the sweep would have it delivered again and again.
func (d *deliverer) noteDone(ctx context.Context, ref bus.ChunkRef) error {
	return d.timing.untilStored(ctx, func(ctx context.Context) error {
		return d.store.Delivered(ctx, ref.Task, ref.Chunk, nil, true)
	})
}

// begin asks the gate, for as long as the store is away. Only items that no
// agent has accepted are left in Open: the others are the agents' and, if
// they are lost there, the sweep's.
func (d *deliverer) begin(ctx context.Context, ref bus.ChunkRef) (*taskstore.Begun, error) {
	var begun taskstore.Begun
	err := d.timing.untilStored(ctx, func(ctx context.Context) (err error) {
		begun, err = d.store.Begin(ctx, ref.Task, ref.Chunk)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("begin chunk %s/%d: %w", ref.Task, ref.Chunk, err)
	}
	begun.Open = slices.DeleteFunc(begun.Open, func(i int) bool { return slices.Contains(begun.Delivered, i) })
	return &begun, nil
}

// isolate ends the items of a chunk that came too often, so that it does not
// come for ever.
func (d *deliverer) isolate(ctx context.Context, ref bus.ChunkRef, msg jetstream.Msg) error {
	log := d.log.WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk})
	begun, err := d.begin(ctx, ref)
	if err != nil {
		log.WithError(err).Error("poisoned chunk not ended, will be redelivered")
		return msg.NakWithDelay(jitter(d.timing.RetryMax))
	}
	if begun.Gate != taskstore.GateOpen {
		return msg.Ack()
	}
	results := make([]procfleet.Result, len(begun.Open))
	text := fmt.Sprintf("%d deliveries of this part of the task broke off, outcome unknown: see the workers' logs, look with a status, then repeat if needed", maxDeliveries)
	for n, i := range begun.Open {
		results[n] = serverResult(begun.Chunk.First+i, procfleet.CodeFailed, procfleet.ReasonCommandFailed, text, d.clock.now())
	}
	if _, err = d.recorder.recordOf(ctx, ref.Task, results); err == nil {
		err = d.noteDone(ctx, ref)
	}
	if err != nil {
		log.WithError(err).Error("poisoned chunk not ended, will be redelivered")
		return msg.NakWithDelay(jitter(d.timing.RetryMax))
	}
	log.WithField("items", len(results)).Error("chunk isolated after too many deliveries")
	return msg.TermWithReason("delivered too often")
}
