package deliver

import (
	"context"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/storecall"
)

// maxDeliveries is the number of unfinished deliveries after which a chunk is assumed
// to cause the failures and is isolated.
const maxDeliveries = 5

// logUnacknowledged logs err if an ack was not sent, which causes a redelivery.
func (d *Deliverer) logUnacknowledged(msg jetstream.Msg, err error) {
	if err != nil {
		d.log.WithError(err).WithField("subject", msg.Subject()).Warn("acknowledgement not sent, chunk will be redelivered")
	}
}

// recoverPanic naks a chunk whose delivery panicked; maxDeliveries bounds the retries.
func (d *Deliverer) recoverPanic(msg jetstream.Msg) {
	r := recover()
	if r == nil {
		return
	}
	d.log.WithFields(logrus.Fields{"error": fmt.Sprint(r), "stack": string(debug.Stack())}).Error("chunk delivery panicked")
	d.logUnacknowledged(msg, d.retryLater(msg))
}

// isolate ends the open items of a chunk that was delivered too often, so that the
// chunk is not redelivered forever.
func (d *Deliverer) isolate(ctx context.Context, ref bus.ChunkRef, msg jetstream.Msg) error {
	if ref.Cancels || ref.Advances { // the sweep does it until the task ends
		return msg.TermWithReason("delivered too often")
	}
	log := d.log.WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk})
	begun, err := d.begin(ctx, ref)
	if err == nil && begun.Gate != taskstore.GateOpen {
		return msg.Ack()
	}
	if err == nil {
		err = d.endIsolated(ctx, ref, begun)
	}
	if err != nil {
		log.WithError(err).Error("poisoned chunk not ended, will be redelivered")
		return d.retryLater(msg)
	}
	log.WithField("items", len(begun.Open)).Error("chunk isolated after too many deliveries")
	return msg.TermWithReason("delivered too often")
}

func (d *Deliverer) endIsolated(ctx context.Context, ref bus.ChunkRef, begun *taskstore.Begun) error {
	results := make([]procfleet.Result, len(begun.Open))
	text := fmt.Sprintf("%d deliveries of this part of the task broke off, outcome unknown: see the workers' logs, query the status, then repeat if needed", maxDeliveries)
	for n, i := range begun.Open {
		results[n] = agentlink.ServerResult(begun.Chunk.First+i, procfleet.CodeFailed, procfleet.ReasonCommandFailed, text, d.cfg.Clock.Now())
	}
	if _, err := d.cfg.Recorder.Record(ctx, ref.Task, results); err != nil {
		return err
	}
	return d.storeDone(ctx, ref)
}

func (d *Deliverer) retryLater(msg jetstream.Msg) error {
	return msg.NakWithDelay(storecall.Jitter(d.cfg.Calls.RetryMax))
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
	sequences, err := d.cfg.Bus.PublishChunks(ctx, []bus.ChunkRef{ref}, strconv.FormatInt(d.cfg.Clock.Now().UnixMilli(), 10))
	if err != nil || ref.Cancels || ref.Advances || ref.Upto > 0 {
		return err
	}
	if err := d.cfg.Store.Republished(ctx, ref.Task, ref.Chunk, sequences[0]); err != nil {
		// The chunk is queued; the sweep may queue a duplicate, which is harmless.
		d.log.WithError(err).WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk}).Warn("stream sequence of chunk not stored")
	}
	return nil
}
