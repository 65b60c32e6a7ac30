package worker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
)

// This file serves the release before, whose agents published results and events
// to streams. It goes with the next release, as internal/bus/oldresults.go does.

// olderReceipt returns the acknowledgement of a stream, which an agent of the
// release before expects once its request is stored. Until then it gets no reply
// and publishes again.
func olderReceipt(r *request, receipt *agentproto.Receipt) *nats.Msg {
	if receipt.RetryAfterMS > 0 {
		return nil
	}
	data, err := json.Marshal(jetstream.PubAck{Stream: bus.OldStreamOf(r.kind), Sequence: 1})
	if err != nil {
		return nil // cannot happen: these are words and numbers
	}
	return &nats.Msg{Subject: r.msg.Reply, Data: data}
}

// olderResults stores what the results stream of the release before still has,
// and removes the stream.
type olderResults struct {
	bus     *bus.Bus
	collect *collector
	timing  *Timing
	log     logrus.FieldLogger
}

// olderEvery is the pause between looks: a dispatcher of the release before that
// starts makes the stream anew.
const olderEvery = time.Minute

// run looks until ctx ends; work on what it has read goes on.
func (o *olderResults) run(ctx, work context.Context) {
	for ctx.Err() == nil {
		next := olderEvery
		if err := o.drain(ctx, work); err != nil && ctx.Err() == nil {
			o.log.WithError(err).Warn("old results stream not drained, retrying")
			next = o.timing.RetryMax
		}
		if pause(ctx, jitter(next)) != nil {
			return
		}
	}
}

// drain stores all results of the stream and removes it.
func (o *olderResults) drain(ctx, work context.Context) error {
	call, cancel := context.WithTimeout(ctx, o.timing.StoreCall)
	consumers, err := o.bus.DetachOldStreams(call)
	cancel()
	if err != nil || len(consumers) == 0 {
		return err
	}
	for _, consumer := range consumers {
		for more := true; more && ctx.Err() == nil; {
			if more, err = o.some(work, consumer); err != nil {
				return err
			}
		}
	}
	removed, err := o.bus.RemoveOldResults(ctx)
	if removed {
		o.log.WithField("stream", bus.StreamOldResults).Info("old results stream removed")
	}
	return err
}

// some stores up to a batch of results and then acknowledges them; more says
// whether there were any.
func (o *olderResults) some(work context.Context, consumer jetstream.Consumer) (more bool, err error) {
	batch, err := consumer.Fetch(o.collect.max, jetstream.FetchMaxWait(o.timing.Pull), jetstream.FetchMaxBytes(maxCollectBytes))
	if err != nil {
		return false, err
	}
	var msgs []jetstream.Msg
	var copies []*nats.Msg
	for msg := range batch.Messages() {
		msgs = append(msgs, msg)
		copies = append(copies, &nats.Msg{Subject: msg.Subject(), Header: msg.Headers(), Data: msg.Data()})
	}
	if err := ending(batch); err != nil && len(msgs) == 0 {
		return false, err
	}
	requests := o.collect.openAll(copies)
	if _, err := o.collect.collect(work, requests); err != nil {
		return false, err // what is not acknowledged is delivered again
	}
	refused := map[*nats.Msg]bool{}
	for _, r := range requests {
		refused[r.msg] = r.refused
	}
	for i, msg := range msgs {
		if err := o.acknowledge(msg, refused[copies[i]]); err != nil {
			return false, err
		}
	}
	return len(msgs) > 0, nil
}

// acknowledge removes a message from the stream: the agent has forgotten its
// results, so those that the store refuses are tried maxDeliveries times.
func (o *olderResults) acknowledge(msg jetstream.Msg, refused bool) error {
	if !refused {
		return msg.Ack()
	}
	if meta, err := msg.Metadata(); err == nil && meta.NumDelivered < maxDeliveries {
		return msg.NakWithDelay(jitter(o.timing.RetryMax))
	}
	return msg.TermWithReason("the task store refuses these results")
}
