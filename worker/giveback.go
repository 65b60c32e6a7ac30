package worker

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// errGiveBack ends a delivery in good order since the worker stops; so does
// errNoRoom, since there is no room to wait for the hosts of the chunk.
var (
	errGiveBack = errors.New("the chunk goes back to the queue")
	errNoRoom   = errors.New("there is no room to wait for the hosts of the chunk")
)

// giveBackWait bounds giving a chunk back, also when the worker's time is up.
const giveBackWait = 2 * time.Second

// giveBack queues a chunk anew, behind the others of its lane. It does not
// come as a repeat, of which too many would count against it.
func (d *deliverer) giveBack(ctx context.Context, msg jetstream.Msg) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackWait)
	defer cancel()
	if err := d.queueAnew(tracecontext.Extract(ctx, msg.Headers()), msg.Data()); err != nil {
		d.log.WithError(err).WithField("subject", msg.Subject()).Warn("chunk not requeued, will be redelivered")
		d.answer(msg, msg.Nak())
		return
	}
	d.answer(msg, msg.Ack())
}

// putOff leaves a chunk in the queue for a while, longer each time. Before it
// came so often that it would be taken for the cause of broken deliveries, it is
// queued anew, and counts from one again.
func (d *deliverer) putOff(ctx context.Context, msg jetstream.Msg, attempt uint64) {
	if attempt >= maxDeliveries-1 {
		d.giveBack(ctx, msg)
		return
	}
	d.answer(msg, msg.NakWithDelay(jitter(d.timing.Ask.PutOff<<(attempt-1))))
}

func (d *deliverer) queueAnew(ctx context.Context, data []byte) error {
	ref, err := bus.DecodeChunkRef(data)
	if err != nil {
		return err
	}
	sequences, err := d.bus.PublishChunks(ctx, []bus.ChunkRef{ref}, round(d.clock.now()))
	if err != nil {
		return err
	}
	if err := d.store.Republished(ctx, ref.Task, ref.Chunk, sequences[0]); err != nil {
		// Queued it is; the sweep may queue it once more, which does no harm.
		d.log.WithError(err).WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk}).Warn("chunk sequence not stored")
	}
	return nil
}
