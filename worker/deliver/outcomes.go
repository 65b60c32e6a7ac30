package deliver

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/metrics"
)

func (dl *delivery) settle(h *hostRequest) {
	if dl.hosts[h.index] != nil {
		dl.hosts[h.index] = nil
		dl.open--
	}
}

func (dl *delivery) end(i int, code procfleet.Code, reason procfleet.Reason, message string) {
	dl.results = append(dl.results, agentlink.ServerResult(dl.begun.Chunk.First+i, code, reason, message, dl.cfg.Clock.Now()))
}

func (dl *delivery) giveUp(h *hostRequest, code procfleet.Code, reason procfleet.Reason, message string) {
	dl.trace.gaveUp(h, dl.begun.Chunk.Items[h.todo[0]].Action, reason, message)
	for _, i := range h.todo {
		dl.end(i, code, reason, message)
	}
	h.todo, h.part = nil, 0
	dl.settle(h)
}

// endMutating fails the open items of a host whose action changes the host.
func (dl *delivery) endMutating(h *hostRequest, reason procfleet.Reason, message string) {
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

// endUnroutable ends the items without a host: no live agent announces the agent id in
// their target, or several agents do.
func (dl *delivery) endUnroutable(ctx context.Context) error {
	if len(dl.unroutable) == 0 {
		return nil
	}
	ids := make([]string, len(dl.unroutable))
	for n, i := range dl.unroutable {
		ids[n] = dl.begun.Chunk.Items[i].Target.AgentID
	}
	var claimants [][]procfleet.Host
	err := dl.cfg.Calls.Retry(ctx, func(ctx context.Context) (err error) {
		claimants, err = dl.cfg.Store.Claimants(ctx, ids)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the claimants of %d agent ids: %w", len(ids), err)
	}
	for n, i := range dl.unroutable {
		if len(claimants[n]) < 2 {
			dl.end(i, procfleet.CodeAgentAbnormal, procfleet.ReasonUnreachable, unknownTarget(&dl.begun.Chunk.Items[i].Target))
			continue
		}
		dl.cfg.Metrics.Troubles.Add(1, metrics.TroubleAgentIDConflict)
		dl.end(i, procfleet.CodeFailed, procfleet.ReasonRefused, dl.cfg.Claims.Conflict(claimants[n], ids[n]))
	}
	dl.unroutable = nil
	return nil
}

// endReinstalledSinceBegun ends mutating items in a chunk that another worker began
// earlier: that worker may have delivered them to an agent instance that has been
// replaced since, whose state is lost.
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

// outcomeUnknown is appended to the message of an item that an agent may have accepted.
const outcomeUnknown = "; the command was sent before, outcome unknown: query the status, then repeat if needed"

// mayHaveAccepted reports whether an agent may have accepted open items of h: an
// earlier request had no reply, or an earlier worker sent one.
func (dl *delivery) mayHaveAccepted(h *hostRequest) bool {
	return h.unreplied || h.noReplies > 0 || dl.begun.FirstBegun.Before(dl.begun.Now)
}

// endConflict ends the mutating items of a host that two agents claim. Either agent may
// have accepted an earlier command.
func (dl *delivery) endConflict(h *hostRequest) {
	if dl.mayHaveAccepted(h) {
		dl.endMutating(h, procfleet.ReasonCommandFailed, h.conflictMessage()+outcomeUnknown)
		return
	}
	dl.endMutating(h, procfleet.ReasonRefused, h.conflictMessage())
}

// phaseUnregistered is the phase of a process that is not registered. Only the server
// reports it, never an agent.
const phaseUnregistered = "unregistered"

// unregistered returns the result of an operation by registration on a process that is
// not registered: without a spec no command can be sent.
func unregistered(item int, action procfleet.Action, spec *procfleet.ProcessSpec, now time.Time) procfleet.Result {
	const problem = "process info not registered"
	end := func(code procfleet.Code, reason procfleet.Reason, message string) procfleet.Result {
		return agentlink.ServerResult(item, code, reason, message, now)
	}
	switch {
	case action == procfleet.ActionStatus:
		r := end(procfleet.CodeSuccess, procfleet.ReasonSucceeded, "success")
		r.Status = &procfleet.ProcessStatus{At: now, Phase: phaseUnregistered}
		return r
	case action == procfleet.ActionStop:
		return end(procfleet.CodeNotRunning, procfleet.ReasonNotRunning, problem+": there is nothing to stop")
	case !action.Known():
		return end(procfleet.CodeUnknownAction, procfleet.ReasonRefused, fmt.Sprintf("%s, and action %q is unknown", problem, action))
	}
	return end(procfleet.CodeFailed, procfleet.ReasonRefused,
		fmt.Sprintf("%s: register %s on this host first, or send its spec with the operation", problem, spec.Key()))
}

// Messages of server-made results. Each has the host, what was tried and a remedy.

func unknownTarget(t *procfleet.Target) string {
	if t.AgentID != "" {
		return fmt.Sprintf("no agent with id %q has announced itself: check the id, or start the agent on its host", agentlink.Cut(t.AgentID, agentlink.MaxName))
	}
	return "neither an address nor an agent id was given for this item: name the host"
}

func (h *hostRequest) noRespondersMessage(now time.Time, t *Timing) string {
	if waited := now.Sub(h.unavailableSince); waited > 2*t.NoResponderAgain {
		return fmt.Sprintf("no agent of host %s is connected, %d requests in %v had no responders: check procfleet-agent on the host and its network path to NATS",
			h.name, h.noResponders, waited.Round(time.Second))
	}
	return fmt.Sprintf("no agent of host %s is connected, two requests had no responders: start procfleet-agent on the host", h.name)
}

func (h *hostRequest) noReplyMessage() string {
	if h.rejected != nil {
		return fmt.Sprintf("agent of host %s replies, but its signature is not verified: %v; %s", h.name, h.rejected, agentlink.Remedy(h.rejected))
	}
	return fmt.Sprintf("agent of host %s is connected but did not reply to %d requests: check whether the host hangs, then repeat", h.name, h.noReplies)
}

func (h *hostRequest) refusedMessage(reason, message string) string {
	text := fmt.Sprintf("agent of host %s refused the command (%s)", h.name, agentlink.Cut(reason, agentlink.MaxName))
	if message != "" {
		text += ": " + message
	}
	switch reason {
	case agentproto.RefusedExpired:
		text += "; it arrived too late every time: check the host's clock and its network path to NATS"
	case agentproto.RefusedIncarnation:
		text += "; another process of this agent replies than the announced one: check that no copy of its data folder is in use"
	case agentproto.RefusedInstance:
		text += "; another agent instance replies than the announced one: check that one agent runs on the host"
	case agentproto.RefusedSignature:
		text += "; the agent could not verify the command's signature: re-enroll the host"
	}
	return text
}

func (h *hostRequest) conflictMessage() string {
	return fmt.Sprintf("two agents claim host %s: stop one; if one is a copy, give it an identity and an empty data folder of its own", h.name)
}

func (h *hostRequest) reinstalledMessage() string {
	return fmt.Sprintf("agent of host %s was reinstalled, outcome unknown: query the status, then repeat if needed", h.name)
}
