package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
)

// delivery is one begun chunk on its way to the agents of its hosts. One
// goroutine owns it: that of [deliverer.deliver].
type delivery struct {
	*deliverer
	ref   bus.ChunkRef
	begun *taskstore.Begun
	place *place
	log   logrus.FieldLogger

	trace    *askTrace
	commands *commands
	asking   *asking
	nowhere  []int      // items without a host, indexes into the chunk
	hosts    []*hostAsk // not settled ones; nil where settled
	open     int        // how many are not settled
	heard    time.Time  // when an agent last answered, or all were first asked
	wake     time.Time  // when the earliest host is to be looked at

	// What the store is yet to be told.
	accepted []int // items of the task
	results  []procfleet.Result
	tellBy   time.Time // when results of agents are told at the latest; zero if there are none
}

// tellWithin is how long results that agents answer with wait for those of
// other hosts, so that most chunks tell all of them at once.
const tellWithin = 150 * time.Millisecond

// restAfter is how long no host of a chunk has answered when another one may
// be worked on.
const restAfter = 5 * time.Millisecond

// errOverdue ends a delivery without every host having answered, as do
// [errGiveBack] and [errNoRoom].
var errOverdue = errors.New("the task's deadline has passed")

func (d *deliverer) newDelivery(ctx context.Context, ref bus.ChunkRef, begun *taskstore.Begun, at *place) (*delivery, error) {
	commands, err := newCommands(&begun.Task, &begun.Chunk)
	if err != nil {
		return nil, err
	}
	dl := &delivery{
		deliverer: d, ref: ref, begun: begun, place: at, commands: commands,
		log:   tracecontext.Log(ctx, d.log.WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk})),
		trace: newAskTrace(ctx, d.tracer, d.agents, &begun.Task),
	}
	dl.group()
	begun.Chunk.Specs = nil // encoded; from here on only that form is needed
	return dl, nil
}

// group sorts the open items by host. Those without a spec end here.
func (dl *delivery) group() {
	byHost := make(map[procfleet.Host]*hostAsk, len(dl.begun.Open))
	for _, i := range dl.begun.Open {
		target := &dl.begun.Chunk.Items[i].Target
		if target.Host.IsZero() {
			dl.nowhere = append(dl.nowhere, i)
			continue
		}
		if spec := dl.begun.Chunk.Spec(i); spec.Unregistered {
			dl.results = append(dl.results, unregistered(dl.begun.Chunk.First+i, dl.begun.Chunk.Items[i].Action, spec, dl.clock.now()))
			continue
		}
		h := byHost[target.Host]
		if h == nil {
			h = newHostAsk(len(dl.hosts), target.Host)
			byHost[target.Host] = h
			dl.hosts = append(dl.hosts, h)
		}
		h.todo = append(h.todo, i)
	}
	dl.open = len(dl.hosts)
}

// run asks until every host has answered or was given up, and tells the store
// as it goes. Everything is told when it returns nil.
func (dl *delivery) run(ctx context.Context) error {
	// Late answers to earlier tries count too: room for all of them.
	dl.asking = dl.asker.begin((len(dl.timing.Ask.Again) + 2) * len(dl.hosts))
	defer dl.asking.end()
	if err := dl.lookAt(ctx, dl.hosts); err != nil {
		return err
	}
	if err := dl.endNowhere(ctx); err != nil {
		return err
	}
	dl.endReinstalledSinceBegun()
	dl.askAll()
	dl.reached(PointAsked)
	if dl.open > 0 && len(dl.results) > 0 { // what ended without being asked need not wait for slow hosts
		if err := dl.tell(ctx, false); err != nil {
			return err
		}
	}
	if err := dl.gather(ctx); err != nil {
		return err
	}
	dl.reached(PointBeforeDone)
	return dl.tell(ctx, true)
}

func (dl *delivery) askAll() {
	now := dl.clock.now()
	for _, h := range dl.hosts {
		if h != nil {
			dl.ask(h, now)
		}
	}
	dl.heard = now
	dl.schedule()
}

// gather takes answers and wakes up for hosts that are due, until none is open.
func (dl *delivery) gather(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var set time.Time // what the timer is set to
	for dl.open > 0 {
		if !dl.wake.Equal(set) {
			set = dl.wake
			timer.Reset(max(0, set.Sub(dl.clock.now())))
		}
		select {
		case a := <-dl.asking.answers:
			dl.answered(a)
		case <-timer.C:
			if err := dl.tend(ctx); err != nil {
				return err
			}
			set = time.Time{}
		case <-dl.place.parkedStop():
			return errGiveBack
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// tend steps aside if no host has answered for a while, tells the store what
// is known, and looks at the hosts that are due: refreshes presence, then asks
// again or gives up.
func (dl *delivery) tend(ctx context.Context) error {
	now := dl.clock.now()
	if !now.Before(dl.begun.Task.Deadline) {
		return errOverdue
	}
	if !now.Before(dl.heard.Add(restAfter)) {
		dl.place.rest()
	}
	due := dl.due(now)
	aside := !dl.place.parked && !now.Before(dl.heard.Add(dl.timing.Ask.StepAside))
	if len(due) > 0 || aside || !dl.tellBy.IsZero() && !now.Before(dl.tellBy) {
		if err := dl.tell(ctx, false); err != nil {
			return err
		}
	}
	if aside {
		if !dl.place.stepAside() {
			return errNoRoom
		}
		dl.slim()
	}
	if err := dl.lookAt(ctx, due); err != nil {
		return err
	}
	dl.takeWaiting()
	woken := now
	now = dl.clock.now()
	for _, h := range due {
		switch {
		case !h.due(now): // any more
		case h.silent(now, &dl.timing.Ask) && woken.Sub(h.again) > dl.timing.Ask.AcceptMargin:
			// This worker was stopped, or is slow: first hear what has come.
			h.again = now.Add(dl.timing.Ask.AcceptMargin)
		default:
			dl.tendHost(h, now)
		}
	}
	dl.schedule()
	return nil
}

// takeWaiting takes the answers that came meanwhile: calls to a slow store, or
// a busy machine, must not make silence of them.
func (dl *delivery) takeWaiting() {
	for dl.open > 0 {
		select {
		case a := <-dl.asking.answers:
			dl.answered(a)
		default:
			return
		}
	}
}

func (dl *delivery) due(now time.Time) (due []*hostAsk) {
	for _, h := range dl.hosts {
		if h != nil && h.due(now) {
			due = append(due, h)
		}
	}
	return due
}

func (dl *delivery) tendHost(h *hostAsk, now time.Time) {
	away := !dl.link.connected()
	switch {
	case h.settled():
		return
	case h.quiet > 0 && (away || dl.link.reconnected().After(h.askedAt)):
		// Not the host's silence but this worker's own.
		h.quiet, h.unanswered = 0, true
	case h.silent(now, &dl.timing.Ask):
		dl.metrics.trouble(troubleSilent)
		dl.giveUp(h, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, h.silentMessage())
		return
	case h.quiet > 0:
		h.unanswered = true
	}
	if away {
		h.again = now.Add(jitter(dl.timing.Ask.NobodyAgain))
		return
	}
	dl.ask(h, now)
}

// schedule sets the next wake: the earliest host, or stepping aside.
func (dl *delivery) schedule() {
	dl.wake = dl.begun.Task.Deadline
	if !dl.place.parked {
		dl.wakeBy(dl.heard.Add(dl.timing.Ask.StepAside))
	}
	if !dl.tellBy.IsZero() {
		dl.wakeBy(dl.tellBy)
	}
	if dl.place.busy {
		dl.wakeBy(dl.heard.Add(restAfter))
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

// slim lets go of what hosts that have answered needed.
func (dl *delivery) slim() {
	left := make([]*hostAsk, 0, dl.open)
	for _, h := range dl.hosts {
		if h != nil {
			left = append(left, h)
		}
	}
	dl.commands.keepOnly(left)
}

// ask sends the next part of what a host has to do.
func (dl *delivery) ask(h *hostAsk, now time.Time) {
	h.part = dl.commands.fit(h.todo)
	h.try++
	acceptBefore := now.Add(dl.timing.Ask.AcceptWindow)
	if acceptBefore.After(dl.begun.Task.Deadline) {
		acceptBefore = dl.begun.Task.Deadline
	}
	id := dl.asking.replySubject(h.index, h.try)
	data, err := dl.commands.encode(h, h.todo[:h.part], id, now, acceptBefore)
	if err != nil {
		dl.giveUp(h, procfleet.CodeFailed, procfleet.ReasonRefused, err.Error())
		return
	}
	header := dl.believer.signed(dl.trace.asking(h, dl.begun.Chunk.Items), h.host, &fleetkey.Message{Purpose: agentproto.TypeCommand, Body: data})
	if err := dl.asking.send(h.index, h.try, h.subject, header, data); err != nil {
		dl.log.WithError(err).WithField("host", h.name).Warn("command not sent, retrying")
		h.again = now.Add(jitter(dl.timing.Ask.NobodyAgain))
	} else {
		h.asked(now, acceptBefore, &dl.timing.Ask)
	}
	dl.wakeBy(h.again)
}

func (dl *delivery) answered(a answer) {
	if a.host >= len(dl.hosts) || dl.hosts[a.host] == nil {
		return
	}
	h := dl.hosts[a.host]
	now := dl.clock.now()
	if a.nobody {
		if a.try == h.try && !h.hadNobody(now, dl.link.reconnected(), &dl.timing.Ask) {
			dl.metrics.trouble(troubleNobody)
			dl.giveUp(h, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, h.nobodyMessage(now, &dl.timing.Ask))
			return
		}
		dl.metrics.trouble(troubleGrace)
		dl.wakeBy(h.again)
		return
	}
	dl.heard = now
	if !dl.believes(h, &a) {
		return
	}
	var reply agentproto.Reply
	if err := agentproto.Decode(a.data, agentproto.TypeReply, &reply); err != nil {
		dl.log.WithError(err).WithField("host", h.name).Warn("reply not decoded, treated as no reply")
		return
	}
	if reply.Refused != "" {
		dl.refused(h, a.try, &reply, now)
		return
	}
	dl.taken(h, a.header, &reply, now)
}

// believes reports whether an answer is from the agent that was asked. One that
// is not is treated as silence: the agent may answer yet.
func (dl *delivery) believes(h *hostAsk, a *answer) bool {
	err := dl.believer.believe(a.header, h.host, &fleetkey.Message{
		Purpose: agentproto.TypeReply, Answers: dl.asking.replySubject(a.host, a.try), Body: a.data,
	})
	if err != nil {
		h.disbelieved = err
	}
	return err == nil
}

// refused handles a command that was turned away as a whole. A refusal of an
// earlier try says nothing about the current one.
func (dl *delivery) refused(h *hostAsk, try int, reply *agentproto.Reply, now time.Time) {
	if try != h.try {
		return
	}
	dl.metrics.trouble(troubleRefused)
	if h.wasRefused(reply.Refused, now, &dl.timing.Ask) {
		dl.wakeBy(h.again)
		return
	}
	if reply.Refused == agentproto.RefusedSignature {
		dl.giveUp(h, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, h.refusedMessage(reply.Refused, reply.Message))
		return
	}
	message := h.refusedMessage(reply.Refused, reply.Message)
	if dl.mayHaveAccepted(h) {
		dl.endMutating(h, procfleet.ReasonCommandFailed, message+outcomeUnknown)
	}
	if !h.settled() {
		dl.giveUp(h, procfleet.CodeFailed, procfleet.ReasonRefused, message)
	}
}

// outcomeUnknown ends the message of an item that an agent may have accepted.
const outcomeUnknown = "; the command was sent before, outcome unknown: look with a status, then repeat if needed"

// mayHaveAccepted reports whether an agent may have accepted what h still has to
// do: an earlier request had no reply, or an earlier worker sent one.
func (dl *delivery) mayHaveAccepted(h *hostAsk) bool {
	return h.unanswered || h.quiet > 0 || dl.begun.FirstBegun.Before(dl.begun.Now)
}

// taken handles an answer item by item; it counts for whichever try it came.
func (dl *delivery) taken(h *hostAsk, header nats.Header, reply *agentproto.Reply, now time.Time) {
	var results []procfleet.Result
	for n := range reply.Items {
		item := &reply.Items[n]
		if !h.answered(item.Item - dl.begun.Chunk.First) {
			continue
		}
		if item.Result == nil {
			dl.accepted = append(dl.accepted, item.Item)
			continue
		}
		result := agentResult(item.Result)
		result.Item = item.Item
		results = append(results, result)
	}
	dl.believer.keepHeldAgentIDs(header, h.host, results)
	dl.keep(h, results, now)
	switch {
	case h.settled():
		dl.trace.settled(h)
		dl.settle(h)
	case h.part == 0:
		h.nextPart()
		dl.ask(h, now)
	}
}

// keep notes results that came with an answer, until they are told.
func (dl *delivery) keep(h *hostAsk, results []procfleet.Result, now time.Time) {
	if len(results) == 0 {
		return
	}
	dl.trace.operated(h, dl.begun.Chunk.Items[results[0].Item-dl.begun.Chunk.First].Action, results)
	dl.results = append(dl.results, results...)
	if dl.tellBy.IsZero() {
		dl.tellBy = now.Add(tellWithin)
		dl.wakeBy(dl.tellBy)
	}
}

func (dl *delivery) settle(h *hostAsk) {
	if dl.hosts[h.index] != nil {
		dl.hosts[h.index] = nil
		dl.open--
	}
}

// end makes the result of one item of the chunk.
func (dl *delivery) end(i int, code procfleet.Code, reason procfleet.Reason, message string) {
	dl.results = append(dl.results, serverResult(dl.begun.Chunk.First+i, code, reason, message, dl.clock.now()))
}

// giveUp ends all that a host has not answered for.
func (dl *delivery) giveUp(h *hostAsk, code procfleet.Code, reason procfleet.Reason, message string) {
	dl.trace.gaveUp(h, dl.begun.Chunk.Items[h.todo[0]].Action, reason, message)
	for _, i := range h.todo {
		dl.end(i, code, reason, message)
	}
	h.todo, h.part = nil, 0
	dl.settle(h)
}

// endMutating ends the items of a host that would change something there.
func (dl *delivery) endMutating(h *hostAsk, reason procfleet.Reason, message string) {
	action := dl.begun.Chunk.Items[h.todo[0]].Action
	h.todo = slices.DeleteFunc(h.todo, func(i int) bool {
		mutating := dl.begun.Chunk.Items[i].Action.Mutating()
		if mutating {
			dl.end(i, procfleet.CodeFailed, reason, message)
		}
		return mutating
	})
	h.part = 0
	if h.settled() {
		dl.trace.gaveUp(h, action, reason, message)
		dl.settle(h)
	}
}

// lookAt refreshes what is known of the agents of hosts, and ends what two
// claimants of a host or a new instance make unanswerable.
func (dl *delivery) lookAt(ctx context.Context, asks []*hostAsk) error {
	if len(asks) == 0 {
		return nil
	}
	hosts := make([]procfleet.Host, len(asks))
	for i, h := range asks {
		hosts[i] = h.host
	}
	var presences []taskstore.Presence
	err := dl.timing.untilStored(ctx, func(ctx context.Context) (err error) {
		presences, err = dl.store.Presences(ctx, hosts)
		return err
	})
	if err != nil {
		return fmt.Errorf("look up the agents of %d hosts: %w", len(hosts), err)
	}
	for i, h := range asks {
		replaced := h.seen(&presences[i])
		switch {
		case h.conflict:
			dl.metrics.trouble(troubleConflict)
			dl.endConflict(h)
		case replaced && (h.unanswered || h.quiet > 0):
			dl.endMutating(h, procfleet.ReasonCommandFailed, h.reinstalledMessage())
		}
	}
	return nil
}

// endConflict ends what would change a host that two agents claim. A command
// that was sent before may have been accepted by one of them.
func (dl *delivery) endConflict(h *hostAsk) {
	if dl.mayHaveAccepted(h) {
		dl.endMutating(h, procfleet.ReasonCommandFailed, h.conflictMessage()+outcomeUnknown)
		return
	}
	dl.endMutating(h, procfleet.ReasonRefused, h.conflictMessage())
}

// endReinstalledSinceBegun is for a chunk that was begun before: an earlier
// worker may have given it to an instance that is no more, which took what it
// did with it.
func (dl *delivery) endReinstalledSinceBegun() {
	if !dl.begun.FirstBegun.Before(dl.begun.Now) {
		return
	}
	for _, h := range dl.hosts {
		if h != nil && h.fresh && h.since.After(dl.begun.FirstBegun) {
			dl.endMutating(h, procfleet.ReasonCommandFailed, h.reinstalledMessage())
		}
	}
}

// tell stores results and deliveries, in this order, so that a worker killed
// in between leaves a chunk that is not done.
func (dl *delivery) tell(ctx context.Context, done bool) error {
	over := false // the task is, and wants no more notes
	if len(dl.results) > 0 {
		recorded, err := dl.recorder.recordOf(ctx, dl.ref.Task, dl.results)
		if err != nil {
			return err
		}
		dl.results, over = nil, recorded.Completed
	}
	dl.tellBy = time.Time{}
	if len(dl.accepted) == 0 && (over || !done) {
		return nil
	}
	err := dl.timing.untilStored(ctx, func(ctx context.Context) error {
		return dl.store.Delivered(ctx, dl.ref.Task, dl.ref.Chunk, dl.accepted, done)
	})
	if err != nil {
		return fmt.Errorf("note %d items of chunk %s/%d as delivered: %w",
			len(dl.accepted), dl.ref.Task, dl.ref.Chunk, err)
	}
	if len(dl.accepted) > 0 {
		dl.recorder.hints.change(dl.ref.Task)
	}
	dl.metrics.delivered.Add(ctx, int64(len(dl.accepted)))
	dl.accepted = nil
	return nil
}
