package deliver

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/metrics"
)

func (dl *delivery) handleReply(r agentlink.Reply) {
	if r.Host >= len(dl.hosts) || dl.hosts[r.Host] == nil {
		return
	}
	h := dl.hosts[r.Host]
	now := dl.cfg.Clock.Now()
	if r.NoResponders {
		if r.Try == h.try && !h.hadNoResponders(now, dl.reconnected(), &dl.cfg.Timing) {
			dl.cfg.Metrics.Troubles.Add(1, metrics.TroubleNoResponders)
			if dl.mayWait(now) {
				dl.wait(h, now)
				return
			}
			dl.giveUp(h, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, h.noRespondersMessage(now, &dl.cfg.Timing))
			return
		}
		dl.cfg.Metrics.Troubles.Add(1, metrics.TroubleGrace)
		dl.wakeBy(h.again)
		return
	}
	dl.lastReply = now
	if !dl.verified(h, &r) {
		return
	}
	var reply agentproto.Reply
	if err := agentproto.Decode(r.Data, agentproto.TypeReply, &reply); err != nil {
		dl.log.WithError(err).WithField("host", h.name).Warn("reply not decoded, treated as no reply")
		return
	}
	if reply.Refused != "" {
		dl.handleRefusal(h, r.Try, &reply, now)
		return
	}
	dl.handleItems(h, r.Header, &reply, now)
}

// verified reports whether a reply is from the host's agent. An unverified reply is
// treated as no reply, because the agent's own may still arrive.
func (dl *delivery) verified(h *hostRequest, r *agentlink.Reply) bool {
	err := dl.cfg.Auth.Verify(r.Header, h.host, &fleetkey.Message{
		Purpose: agentproto.TypeReply, Answers: dl.batch.ReplySubject(r.Host, r.Try), Body: r.Data,
	})
	if err != nil {
		h.rejected = err
	}
	return err == nil
}

// handleRefusal handles the refusal of a whole command. Refusals of earlier attempts
// are ignored.
func (dl *delivery) handleRefusal(h *hostRequest, try int, reply *agentproto.Reply, now time.Time) {
	if try != h.try {
		return
	}
	dl.cfg.Metrics.Troubles.Add(1, metrics.TroubleRefused)
	if h.wasRefused(reply.Refused, now, &dl.cfg.Timing) {
		dl.wakeBy(h.again)
		return
	}
	message := h.refusedMessage(reply.Refused, reply.Message)
	if reply.Refused == agentproto.RefusedSignature {
		dl.giveUp(h, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, message)
		return
	}
	if dl.mayHaveAccepted(h) {
		dl.endMutating(h, procfleet.ReasonCommandFailed, message+outcomeUnknown)
	}
	if !h.settled() {
		dl.giveUp(h, procfleet.CodeFailed, procfleet.ReasonRefused, message)
	}
}

// handleItems handles the items of a reply to any attempt, current or earlier.
func (dl *delivery) handleItems(h *hostRequest, header nats.Header, reply *agentproto.Reply, now time.Time) {
	var results []procfleet.Result
	for n := range reply.Items {
		item := &reply.Items[n]
		if !h.replied(item.Item - dl.begun.Chunk.First) {
			continue
		}
		if item.Result == nil {
			dl.accepted = append(dl.accepted, item.Item)
			continue
		}
		result := agentlink.ResultOf(item.Result)
		result.Item = item.Item
		results = append(results, result)
	}
	dl.cfg.Auth.RemoveUnverifiedAgentIDs(header, h.host, results)
	dl.addResults(h, results, now)
	switch {
	case h.settled():
		dl.trace.settled(h)
		dl.settle(h)
	case h.part == 0:
		h.nextPart()
		dl.request(h, now)
	}
}

// addResults adds results of a reply to the results to store within storeWithin.
func (dl *delivery) addResults(h *hostRequest, results []procfleet.Result, now time.Time) {
	if len(results) == 0 {
		return
	}
	dl.trace.operated(h, dl.begun.Chunk.Items[results[0].Item-dl.begun.Chunk.First].Action, results)
	dl.results = append(dl.results, results...)
	if dl.storeBy.IsZero() {
		dl.storeBy = now.Add(storeWithin)
		dl.wakeBy(dl.storeBy)
	}
}

// flush stores results first and deliveries last: if the worker is killed in between,
// the chunk is not done and is delivered again.
func (dl *delivery) flush(ctx context.Context, done bool) error {
	completed := false // a completed task needs no chunk marked as done
	if len(dl.results) > 0 {
		recorded, err := dl.cfg.Recorder.Record(ctx, dl.ref.Task, dl.results)
		if err != nil {
			return err
		}
		dl.results, completed = nil, recorded.Completed
	}
	dl.storeBy = time.Time{}
	if err := dl.storeAway(ctx); err != nil {
		return err
	}
	if len(dl.accepted) == 0 && (completed || !done) {
		return nil
	}
	err := dl.cfg.Calls.Retry(ctx, func(ctx context.Context) error {
		return dl.cfg.Store.Delivered(ctx, dl.ref.Task, dl.ref.Chunk, dl.accepted, done)
	})
	if err != nil {
		return fmt.Errorf("store %d items of chunk %s/%d as delivered: %w",
			len(dl.accepted), dl.ref.Task, dl.ref.Chunk, err)
	}
	if len(dl.accepted) > 0 {
		dl.cfg.Recorder.Hints.Change(dl.ref.Task)
	}
	dl.cfg.Metrics.Delivered.Add(ctx, int64(len(dl.accepted)))
	dl.accepted = nil
	return nil
}
