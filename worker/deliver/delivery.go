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
	held  <-chan struct{} // receives a hint that the task was paused
	log   logrus.FieldLogger

	trace      *requestTrace
	commands   *commands
	batch      *agentlink.RequestBatch
	unroutable []int          // items without a host, as indexes into the chunk
	hosts      []*hostRequest // by index; nil if the host is settled
	open       int            // hosts that are not settled
	lastReply  time.Time      // time of the last reply of any agent, or of the first requests
	wake       time.Time      // expiry of the next timer
	leased     time.Time      // store time at which the lease was last renewed

	// Replies that are not stored yet:
	accepted []int // accepted items, as indexes into the task
	results  []procfleet.Result
	away     awayItems
	storeBy  time.Time // latest time to store results of agents; zero if there are none
}

// storeWithin is how long results in replies wait for results of other hosts, so that
// most chunks store all results in one call.
const storeWithin = 150 * time.Millisecond

func (d *Deliverer) newDelivery(ctx context.Context, ref bus.ChunkRef, begun *taskstore.Begun, s *slot) (*delivery, error) {
	commands, err := newCommands(begun)
	if err != nil {
		return nil, err
	}
	dl := &delivery{
		Deliverer: d, ref: ref, begun: begun, slot: s, commands: commands, leased: begun.Now,
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
			dl.results = append(dl.results, unregistered(dl.begun.Chunk.First+i, dl.begun.Chunk.Items[i].Action, spec, dl.cfg.Clock.Now()))
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
	if err := dl.renewStale(ctx); err != nil { // the wait for the in-flight limit may have been long
		return err
	}
	dl.requestAll()
	dl.cfg.Reached(PointRequested)
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
	now := dl.cfg.Clock.Now()
	for _, h := range dl.hosts {
		if h != nil {
			dl.request(h, now)
		}
	}
	dl.lastReply = now
	dl.schedule()
}

// request sends a command with the next part of a host's items.
func (dl *delivery) request(h *hostRequest, now time.Time) {
	h.part = dl.commands.fit(h.todo)
	h.try++
	acceptBefore := dl.leased.Add(dl.cfg.Timing.AcceptWindow)
	if acceptBefore.After(dl.begun.Deadline) {
		acceptBefore = dl.begun.Deadline
	}
	id := dl.batch.ReplySubject(h.index, h.try)
	data, err := dl.commands.encode(h, h.todo[:h.part], id, now, acceptBefore)
	if err != nil {
		dl.giveUp(h, procfleet.CodeFailed, procfleet.ReasonRefused, err.Error())
		return
	}
	header := dl.cfg.Auth.Sign(dl.trace.header(h, dl.begun.Chunk.Items), h.host, &fleetkey.Message{Purpose: agentproto.TypeCommand, Body: data})
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
	err := dl.cfg.Calls.Retry(ctx, func(ctx context.Context) (err error) {
		presences, err = dl.cfg.Store.Presences(ctx, hosts)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the presences of %d hosts: %w", len(hosts), err)
	}
	for i, h := range requests {
		replaced := h.observe(&presences[i])
		switch {
		case h.conflict:
			dl.cfg.Metrics.Troubles.Add(1, metrics.TroubleConflict)
			dl.endConflict(h)
		case replaced && (h.unreplied || h.noReplies > 0):
			dl.endMutating(h, procfleet.ReasonCommandFailed, h.reinstalledMessage())
		}
	}
	return nil
}
