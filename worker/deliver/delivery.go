package deliver

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/storecall"
)

// delivery is the delivery of one begun chunk. Only the goroutine of
// [Deliverer.deliver] uses it.
type delivery struct {
	*Deliverer
	ref   bus.ChunkRef
	begun *taskstore.Begun
	slot  *slot
	log   logrus.FieldLogger

	trace      *requestTrace
	commands   *commands
	batch      *agentlink.RequestBatch
	unroutable []int          // items without a host, as indexes into the chunk
	hosts      []*hostRequest // by index; nil if the host is settled
	open       int            // hosts that are not settled
	lastReply  time.Time      // time of the last reply of any agent, or of the first requests
	wake       time.Time      // expiry of the next timer

	// Replies that are not stored yet:
	accepted []int // accepted items, as indexes into the task
	results  []procfleet.Result
	storeBy  time.Time // latest time to store results of agents; zero if there are none
}

// storeWithin is how long results in replies wait for results of other hosts, so that
// most chunks store all results in one call.
const storeWithin = 150 * time.Millisecond

// idleAfter is the time without replies after which another chunk may be processed.
const idleAfter = 5 * time.Millisecond

func (d *Deliverer) newDelivery(ctx context.Context, ref bus.ChunkRef, begun *taskstore.Begun, s *slot) (*delivery, error) {
	commands, err := newCommands(&begun.Task, &begun.Chunk)
	if err != nil {
		return nil, err
	}
	dl := &delivery{
		Deliverer: d, ref: ref, begun: begun, slot: s, commands: commands,
		log:   tracecontext.Log(ctx, d.log.WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk})),
		trace: newRequestTrace(ctx, d.cfg.Tracer, d.cfg.AgentTracer, &begun.Task),
	}
	dl.group()
	begun.Chunk.Specs = nil // not needed any more: commands has the encoded specs
	return dl, nil
}

// group groups the open items by host. It adds the results of unregistered processes.
func (dl *delivery) group() {
	byHost := make(map[procfleet.Host]*hostRequest, len(dl.begun.Open))
	for _, i := range dl.begun.Open {
		target := &dl.begun.Chunk.Items[i].Target
		if target.Host.IsZero() {
			dl.unroutable = append(dl.unroutable, i)
			continue
		}
		if spec := dl.begun.Chunk.Spec(i); spec.Unregistered {
			dl.results = append(dl.results, unregistered(dl.begun.Chunk.First+i, dl.begun.Chunk.Items[i].Action, spec, dl.cfg.Link.Clock.Now()))
			continue
		}
		h := byHost[target.Host]
		if h == nil {
			h = newHostRequest(len(dl.hosts), target.Host)
			byHost[target.Host] = h
			dl.hosts = append(dl.hosts, h)
		}
		h.todo = append(h.todo, i)
	}
	dl.open = len(dl.hosts)
}

// run sends requests until every host has replied or is given up, and stores replies in
// between. If it returns nil, all results and deliveries are stored.
func (dl *delivery) run(ctx context.Context) error {
	// The capacity suffices for late replies to every attempt.
	dl.batch = dl.cfg.Requester.Begin((len(dl.cfg.Timing.Again) + 2) * len(dl.hosts))
	defer dl.batch.End()
	if err := dl.refreshPresences(ctx, dl.hosts); err != nil {
		return err
	}
	if err := dl.endUnroutable(ctx); err != nil {
		return err
	}
	dl.endReinstalledSinceBegun()
	dl.requestAll()
	dl.cfg.Reached(PointAsked)
	if dl.open > 0 && len(dl.results) > 0 { // do not delay results made by the server until slow hosts reply
		if err := dl.flush(ctx, false); err != nil {
			return err
		}
	}
	if err := dl.gather(ctx); err != nil {
		return err
	}
	dl.cfg.Reached(PointBeforeDone)
	return dl.flush(ctx, true)
}

func (dl *delivery) requestAll() {
	now := dl.cfg.Link.Clock.Now()
	for _, h := range dl.hosts {
		if h != nil {
			dl.request(h, now)
		}
	}
	dl.lastReply = now
	dl.schedule()
}

// gather handles replies and retries due hosts until all hosts are settled.
func (dl *delivery) gather(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var set time.Time // expiry of the timer
	for dl.open > 0 {
		if !dl.wake.Equal(set) {
			set = dl.wake
			timer.Reset(max(0, set.Sub(dl.cfg.Link.Clock.Now())))
		}
		select {
		case r := <-dl.batch.Replies:
			dl.handleReply(r)
		case <-timer.C:
			if err := dl.onTimer(ctx); err != nil {
				return err
			}
			set = time.Time{}
		case <-dl.slot.stopping():
			return errRequeue
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// onTimer parks the chunk if no host has replied for Timing.ParkAfter, stores pending
// results, and retries the hosts that are due or gives them up.
func (dl *delivery) onTimer(ctx context.Context) error {
	now := dl.cfg.Link.Clock.Now()
	if !now.Before(dl.begun.Task.Deadline) {
		return errOverdue
	}
	if !now.Before(dl.lastReply.Add(idleAfter)) {
		dl.slot.releaseBusy()
	}
	due := dl.due(now)
	parks := !dl.slot.parked && !now.Before(dl.lastReply.Add(dl.cfg.Timing.ParkAfter))
	if len(due) > 0 || parks || !dl.storeBy.IsZero() && !now.Before(dl.storeBy) {
		if err := dl.flush(ctx, false); err != nil {
			return err
		}
	}
	if parks {
		if !dl.slot.park() {
			return errParkedFull
		}
		dl.commands.keepOnly(dl.hosts)
	}
	if err := dl.refreshPresences(ctx, due); err != nil {
		return err
	}
	dl.handleWaiting()
	woken := now
	now = dl.cfg.Link.Clock.Now()
	for _, h := range due {
		switch {
		case !h.due(now): // a reply handled above has postponed the host
		case h.exhausted(now, &dl.cfg.Timing) && woken.Sub(h.again) > dl.cfg.Timing.AcceptMargin:
			// This worker was suspended or is slow: a reply may still be in transit.
			h.again = now.Add(dl.cfg.Timing.AcceptMargin)
		default:
			dl.retryHost(h, now)
		}
	}
	dl.schedule()
	return nil
}

// handleWaiting handles the replies that are queued already. After a slow store call or
// on a busy machine, their hosts must not count as hosts without reply.
func (dl *delivery) handleWaiting() {
	for dl.open > 0 {
		select {
		case r := <-dl.batch.Replies:
			dl.handleReply(r)
		default:
			return
		}
	}
}

func (dl *delivery) due(now time.Time) (due []*hostRequest) {
	for _, h := range dl.hosts {
		if h != nil && h.due(now) {
			due = append(due, h)
		}
	}
	return due
}

func (dl *delivery) retryHost(h *hostRequest, now time.Time) {
	disconnected := !dl.cfg.Link.Conn.IsConnected()
	switch {
	case h.settled():
		return
	case h.noReplies > 0 && (disconnected || dl.conn.reconnected().After(h.sentAt)):
		// The reply may be missing because this worker was disconnected.
		h.noReplies, h.unreplied = 0, true
	case h.exhausted(now, &dl.cfg.Timing):
		dl.cfg.Link.Metrics.Trouble(metrics.TroubleNoReply)
		dl.giveUp(h, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, h.noReplyMessage())
		return
	case h.noReplies > 0:
		h.unreplied = true
	}
	if disconnected {
		h.again = now.Add(storecall.Jitter(dl.cfg.Timing.NoResponderAgain))
		return
	}
	dl.request(h, now)
}

// schedule sets wake to the earliest of all pending timers.
func (dl *delivery) schedule() {
	dl.wake = dl.begun.Task.Deadline
	if !dl.slot.parked {
		dl.wakeBy(dl.lastReply.Add(dl.cfg.Timing.ParkAfter))
	}
	if !dl.storeBy.IsZero() {
		dl.wakeBy(dl.storeBy)
	}
	if dl.slot.busy {
		dl.wakeBy(dl.lastReply.Add(idleAfter))
	}
	for _, h := range dl.hosts {
		if h != nil {
			dl.wakeBy(h.again)
		}
	}
}

func (dl *delivery) wakeBy(t time.Time) {
	if dl.wake.IsZero() || t.Before(dl.wake) {
		dl.wake = t
	}
}

// request sends a command with the next part of a host's items.
func (dl *delivery) request(h *hostRequest, now time.Time) {
	h.part = dl.commands.fit(h.todo)
	h.try++
	acceptBefore := now.Add(dl.cfg.Timing.AcceptWindow)
	if acceptBefore.After(dl.begun.Task.Deadline) {
		acceptBefore = dl.begun.Task.Deadline
	}
	id := dl.batch.ReplySubject(h.index, h.try)
	data, err := dl.commands.encode(h, h.todo[:h.part], id, now, acceptBefore)
	if err != nil {
		dl.giveUp(h, procfleet.CodeFailed, procfleet.ReasonRefused, err.Error())
		return
	}
	header := dl.cfg.Link.Auth.Sign(dl.trace.header(h, dl.begun.Chunk.Items), h.host, &fleetkey.Message{Purpose: agentproto.TypeCommand, Body: data})
	if err := dl.batch.Send(h.index, h.try, h.subject, header, data); err != nil {
		dl.log.WithError(err).WithField("host", h.name).Warn("command not sent, retrying")
		h.again = now.Add(storecall.Jitter(dl.cfg.Timing.NoResponderAgain))
	} else {
		h.sent(now, acceptBefore, &dl.cfg.Timing)
	}
	dl.wakeBy(h.again)
}

// refreshPresences reads the presences of hosts. It ends the mutating items of hosts
// that two agents claim, or whose agent was replaced by a new instance.
func (dl *delivery) refreshPresences(ctx context.Context, requests []*hostRequest) error {
	if len(requests) == 0 {
		return nil
	}
	hosts := make([]procfleet.Host, len(requests))
	for i, h := range requests {
		hosts[i] = h.host
	}
	var presences []taskstore.Presence
	err := dl.cfg.Link.Calls.Retry(ctx, func(ctx context.Context) (err error) {
		presences, err = dl.cfg.Store.Presences(ctx, hosts)
		return err
	})
	if err != nil {
		return fmt.Errorf("look up the agents of %d hosts: %w", len(hosts), err)
	}
	for i, h := range requests {
		replaced := h.observe(&presences[i])
		switch {
		case h.conflict:
			dl.cfg.Link.Metrics.Trouble(metrics.TroubleConflict)
			dl.endConflict(h)
		case replaced && (h.unreplied || h.noReplies > 0):
			dl.endMutating(h, procfleet.ReasonCommandFailed, h.reinstalledMessage())
		}
	}
	return nil
}
