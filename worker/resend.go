package worker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
)

// lost decides whether the result of a delivered item counts as missing.
type lost func(item *procfleet.ItemResult, agent *taskstore.Presence) bool

// onlyLost selects items whose action must be over by now, and those whose
// agent was first seen after the task was created: it may have been reinstalled.
func onlyLost(task *procfleet.Task, now time.Time) lost {
	return func(item *procfleet.ItemResult, agent *taskstore.Presence) bool {
		if agent.Conflict {
			return false // the instance that replies may not be the one that knows
		}
		return now.After(task.CreatedAt.Add(item.Spec.Budget(item.Item.Action))) || agent.Since.After(task.CreatedAt)
	}
}

func everyItem(*procfleet.ItemResult, *taskstore.Presence) bool { return true }

const (
	resendPage = 1000 // items
	// resendPages bounds one repair; the next continues where it ended.
	resendPages = 10
)

// complete returns the small tasks of a round that miss no result, so that they
// need no repair. It reads their delivered items together; a task that is left
// out or cannot be read is examined alone, by a repair.
func (sh *shard) complete(ctx context.Context, tasks []procfleet.Task) map[procfleet.TaskID]bool {
	now := sh.clock.now()
	var small []procfleet.Task
	items := 0
	for i := range tasks {
		t := &tasks[i]
		if t.Chunks == 1 && t.Dispatched && !t.State.Done() && items+t.Items <= resendPage && sh.needsResults(t, ageOf(t, now)) {
			small, items = append(small, *t), items+t.Items
		}
	}
	if len(small) == 0 {
		return nil
	}
	delivered, err := sh.store.DeliveredItems(ctx, small)
	if err != nil {
		return nil
	}
	agents, err := sh.agentsOf(ctx, delivered...)
	if err != nil {
		return nil
	}
	complete := make(map[procfleet.TaskID]bool, len(small))
	for i := range small {
		is := onlyLost(&small[i], now)
		complete[small[i].ID] = !slices.ContainsFunc(delivered[i], func(item procfleet.ItemResult) bool {
			return is(&item, agents[item.Item.Target.Host])
		})
	}
	return complete
}

// requestResends asks agents to send again the results of delivered items
// that count as lost, and ends the items that their agent does not know.
func (sh *shard) requestResends(ctx context.Context, r *repair, is lost) error {
	for range resendPages {
		page, next, err := sh.store.Results(ctx, r.task.ID, taskstore.ResultQuery{
			State: procfleet.StateDelivered, Cursor: r.cursor, Limit: resendPage,
		})
		if err != nil {
			r.cursor = ""
			return fmt.Errorf("list delivered items: %w", err)
		}
		if err := sh.resendOf(ctx, &r.task, page, is); err != nil {
			return err
		}
		if r.cursor = next; next == "" {
			break
		}
	}
	return nil
}

// itemsOfHost is what one host's agent is asked about.
type itemsOfHost struct {
	host     procfleet.Host
	presence taskstore.Presence
	items    []int // of the task
}

// announced reports whether an agent may be the one whose presence was looked up
// before it was asked, by what both say.
func (h *itemsOfHost) announced(agent agentproto.AgentProcess) bool {
	p := &h.presence
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	return same(p.Instance, agent.Instance) && same(p.Incarnation, agent.Incarnation)
}

// byHost groups items by their hosts, in order.
func byHost(rows []procfleet.ItemResult) []*itemsOfHost {
	var hosts []*itemsOfHost
	known := make(map[procfleet.Host]*itemsOfHost, len(rows))
	for i := range rows {
		host := rows[i].Item.Target.Host
		h := known[host]
		if h == nil {
			h = &itemsOfHost{host: host}
			known[host], hosts = h, append(hosts, h)
		}
		h.items = append(h.items, rows[i].Index)
	}
	return hosts
}

func (sh *shard) resendOf(ctx context.Context, task *procfleet.Task, page []procfleet.ItemResult, is lost) error {
	hosts, err := sh.lostByHost(ctx, page, is)
	if err != nil || len(hosts) == 0 {
		return err
	}
	ctx, span := sh.traceSweep(ctx, task, sweepResend)
	defer span.End()
	sh.metrics.sweep(ctx, sweepResend, len(hosts))
	var results []procfleet.Result
	for _, reply := range sh.askResend(ctx, task, hosts) {
		h := hosts[reply.host]
		if len(reply.unknown) == 0 || h.presence.Conflict || !h.announced(reply.agent) {
			continue // of two agents the one that replied may not be the one that accepted
		}
		sh.log.WithFields(logrus.Fields{"task": task.ID, "host": h.host.String(), "items": len(reply.unknown)}).
			Warn("delivered items unknown to the agent")
		for _, item := range reply.unknown {
			results = append(results, serverResult(item, procfleet.CodeFailed, procfleet.ReasonCommandFailed,
				lostMessage(h, task), sh.clock.now()))
		}
	}
	if len(results) == 0 {
		return nil
	}
	_, err = sh.recorder.recordOf(ctx, task.ID, results)
	return err
}

func lostMessage(h *itemsOfHost, task *procfleet.Task) string {
	what := "agent of host %s lost the command after accepting it"
	if h.presence.Since.After(task.CreatedAt) {
		what = "agent of host %s was reinstalled after accepting the command"
	}
	return fmt.Sprintf(what+", outcome unknown: look with a status, then repeat if needed", h.host)
}

// lostByHost groups the lost items of a page by their hosts.
func (sh *shard) lostByHost(ctx context.Context, page []procfleet.ItemResult, is lost) ([]*itemsOfHost, error) {
	agents, err := sh.agentsOf(ctx, page)
	if err != nil {
		return nil, err
	}
	hosts := byHost(slices.DeleteFunc(page, func(item procfleet.ItemResult) bool {
		return !is(&item, agents[item.Item.Target.Host])
	}))
	for _, h := range hosts {
		h.presence = *agents[h.host]
	}
	return hosts, nil
}

// agentsOf looks up the agents of all items' hosts.
func (sh *shard) agentsOf(ctx context.Context, pages ...[]procfleet.ItemResult) (map[procfleet.Host]*taskstore.Presence, error) {
	var hosts []procfleet.Host
	agents := map[procfleet.Host]*taskstore.Presence{}
	for _, page := range pages {
		for i := range page {
			host := page[i].Item.Target.Host
			if _, known := agents[host]; !known {
				agents[host], hosts = nil, append(hosts, host)
			}
		}
	}
	if len(hosts) == 0 {
		return nil, nil
	}
	presences, err := sh.store.Presences(ctx, hosts)
	if err != nil {
		return nil, fmt.Errorf("look up agents: %w", err)
	}
	for i, host := range hosts {
		agents[host] = &presences[i]
	}
	return agents, nil
}

// resendReply is what a host's agent replied about items.
type resendReply struct {
	host    int
	agent   agentproto.AgentProcess // the one that replied
	unknown []int                   // never accepted
	known   []int                   // accepted: their results are on their way, or to come
}

// askResend asks all hosts at once and gathers the replies that come in time.
// A host without a reply is asked at the next visit.
func (sh *shard) askResend(ctx context.Context, task *procfleet.Task, hosts []*itemsOfHost) []resendReply {
	asking := sh.asker.begin(len(hosts))
	defer asking.end()
	waiting := 0
	for i, h := range hosts {
		if err := sh.sendResend(asking, i, task, h); err != nil {
			sh.log.WithError(err).WithField("host", h.host.String()).Warn("resend request failed")
			continue
		}
		waiting++
	}
	timer := time.NewTimer(sh.timing.Sweep.ResendWait)
	defer timer.Stop()
	var replies []resendReply
	for ; waiting > 0; waiting-- {
		select {
		case a := <-asking.answers:
			if reply, ok := sh.readResendReply(asking, &a, hosts); ok {
				replies = append(replies, reply)
			}
		case <-timer.C:
			return replies
		case <-ctx.Done():
			return replies
		}
	}
	return replies
}

func (sh *shard) sendResend(asking *asking, i int, task *procfleet.Task, h *itemsOfHost) error {
	data, err := agentproto.Encode(&agentproto.Resend{
		Header: agentproto.Header{Type: agentproto.TypeResend, ID: asking.replySubject(i, 0), Sent: sh.clock.now()},
		Task:   string(task.ID), Lane: bus.ResultLane(task.Lane), Host: h.host.String(), Items: h.items,
	})
	if err != nil {
		return err
	}
	header := sh.believer.signed(nil, h.host, &fleetkey.Message{Purpose: agentproto.TypeResend, Body: data})
	return asking.send(i, 0, agentproto.AgentSubject(int64(h.host.Cloud), h.host.Addr), header, data)
}

// readResendReply reads what an agent says of the items that it was asked
// about. A refusal, or no responder, says nothing about them.
func (sh *shard) readResendReply(asking *asking, a *answer, hosts []*itemsOfHost) (resendReply, bool) {
	if a.nobody || a.host >= len(hosts) {
		return resendReply{}, false
	}
	var reply agentproto.ResendReply
	message := fleetkey.Message{Purpose: agentproto.TypeResendReply, Answers: asking.replySubject(a.host, a.try), Body: a.data}
	if sh.believer.believe(a.header, hosts[a.host].host, &message) != nil ||
		agentproto.Decode(a.data, agentproto.TypeResendReply, &reply) != nil || reply.Refused != "" {
		return resendReply{}, false
	}
	asked := make(map[int]bool, len(hosts[a.host].items))
	for _, item := range hosts[a.host].items {
		asked[item] = true
	}
	only := func(items []int) (of []int) {
		for _, item := range items {
			if asked[item] {
				of = append(of, item)
			}
		}
		return of
	}
	return resendReply{host: a.host, agent: agentproto.AgentProcess{Instance: reply.Instance, Incarnation: reply.Incarnation}, unknown: only(reply.Unknown), known: only(append(reply.Sent, reply.Running...))}, true
}
