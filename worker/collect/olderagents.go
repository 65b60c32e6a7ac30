package collect

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/worker/storecall"
)

// This file supports agents of the previous release, which published results to a
// stream. Remove it in the next release, together with internal/bus/oldresults.go.

// olderResults stores the results in the previous release's stream and then removes it.
type olderResults struct{ *collector }

// maxDeliveries bounds the attempts to store results that the store rejects.
const maxDeliveries = 5

// olderEvery is the interval of checks for the stream: a dispatcher of the previous
// release recreates the stream when it starts.
const olderEvery = time.Minute

// run checks for the stream until ctx ends. A batch that was read is still stored,
// unless the context work ends.
func (o *olderResults) run(ctx, work context.Context) {
	for ctx.Err() == nil {
		next := olderEvery
		if err := o.drain(ctx, work); err != nil && ctx.Err() == nil {
			o.Log.WithError(err).Warn("old results stream not drained, retrying")
			next = o.Link.Calls.RetryMax
		}
		if storecall.Pause(ctx, storecall.Jitter(next)) != nil {
			return
		}
	}
}

// drain stores all results in the stream and removes the stream.
func (o *olderResults) drain(ctx, work context.Context) error {
	call, cancel := context.WithTimeout(ctx, o.Link.Calls.Timeout)
	consumers, err := o.cfg.Bus.DetachOldStreams(call)
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
	removed, err := o.cfg.Bus.RemoveOldResults(ctx)
	if removed {
		o.Log.WithField("stream", bus.StreamOldResults).Info("old results stream removed")
	}
	return err
}

// some stores up to one batch of results and acknowledges them. more reports whether
// the batch had messages.
func (o *olderResults) some(work context.Context, consumer jetstream.Consumer) (more bool, err error) {
	batch, err := consumer.Fetch(o.cfg.Max, jetstream.FetchMaxWait(o.cfg.Pull), jetstream.FetchMaxBytes(maxCollectBytes))
	if err != nil {
		return false, err
	}
	var msgs []jetstream.Msg
	var copies []*nats.Msg
	for msg := range batch.Messages() {
		msgs = append(msgs, msg)
		copies = append(copies, &nats.Msg{Subject: msg.Subject(), Header: msg.Headers(), Data: msg.Data()})
	}
	if err := batch.Error(); err != nil && !errors.Is(err, jetstream.ErrBatchCompleted) && len(msgs) == 0 {
		return false, err
	}
	requests := o.OpenAll(copies)
	if _, err := o.collect(work, requests); err != nil {
		return false, err // unacknowledged messages are redelivered
	}
	refused := map[*nats.Msg]bool{}
	for _, r := range requests {
		refused[r.Msg] = r.Refused
	}
	for i, msg := range msgs {
		if err := o.acknowledge(msg, refused[copies[i]]); err != nil {
			return false, err
		}
	}
	return len(msgs) > 0, nil
}

// acknowledge removes a message from the stream. Results that the store rejects are
// redelivered up to maxDeliveries times first, because the agent has deleted its copy.
func (o *olderResults) acknowledge(msg jetstream.Msg, refused bool) error {
	if !refused {
		return msg.Ack()
	}
	if meta, err := msg.Metadata(); err == nil && meta.NumDelivered < maxDeliveries {
		return msg.NakWithDelay(storecall.Jitter(o.Link.Calls.RetryMax))
	}
	return msg.TermWithReason("the task store refuses these results")
}
