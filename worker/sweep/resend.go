package sweep

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
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/metrics"
)

// lost reports whether the result of a delivered item counts as lost.
type lost func(item *procfleet.ItemResult, agent *taskstore.Presence) bool

// onlyLost selects items whose action must have ended by now, and items whose agent was
// first seen after the task was created, because it may have been reinstalled.
func onlyLost(task *procfleet.Task, now time.Time) lost {
	return func(item *procfleet.ItemResult, agent *taskstore.Presence) bool {
		if agent.Conflict {
			return false // another instance than the one with the result may reply
		}
		return now.After(task.CreatedAt.Add(item.Spec.Budget(item.Item.Action))) || agent.Since.After(task.CreatedAt)
	}
}

func everyItem(*procfleet.ItemResult, *taskstore.Presence) bool { return true }

const (
	resendPage = 1000 // items per page
	// resendPages bounds the pages of one repair; the next repair continues after them.
	resendPages = 10
)

// complete returns the small tasks of a round without lost results, which need no
// repair. It reads the delivered items of all of them together. Tasks that it omits, or
// that cannot be read, are checked by a repair each.
func (s *Sweeper) complete(ctx context.Context, tasks []procfleet.Task) map[procfleet.TaskID]bool {
	now := s.cfg.Link.Clock.Now()
	var small []procfleet.Task
	items := 0
	for i := range tasks {
		t := &tasks[i]
		if t.Chunks == 1 && t.Dispatched && !t.State.Done() && items+t.Items <= resendPage && s.needsResults(t, ageOf(t, now)) {
			small, items = append(small, *t), items+t.Items
		}
	}
	if len(small) == 0 {
		return nil
	}
	delivered, err := s.cfg.Store.DeliveredItems(ctx, small)
	if err != nil {
		return nil
	}
	agents, err := s.resends.agentsOf(ctx, delivered...)
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

// requestResends requests agents to resend the results of delivered items that count as
// lost, and fails the items that their agent does not know.
func (s *Sweeper) requestResends(ctx context.Context, r *repair, is lost) error {
	for range resendPages {
		page, next, err := s.cfg.Store.Results(ctx, r.task.ID, taskstore.ResultQuery{
			State: procfleet.StateDelivered, Cursor: r.cursor, Limit: resendPage,
		})
		if err != nil {
			r.cursor = ""
			return fmt.Errorf("list delivered items: %w", err)
		}
		if err := s.resendOf(ctx, &r.task, page, is); err != nil {
			return err
		}
		if r.cursor = next; next == "" {
			break
		}
	}
	return nil
}

// itemsOfHost has the items of one host for a resend request.
type itemsOfHost struct {
	host     procfleet.Host
	presence taskstore.Presence
	items    []int // indexes into the task
}

// announced reports whether agent, which replied, matches the presence read before the
// request. Missing values match.
func (h *itemsOfHost) announced(agent agentproto.AgentProcess) bool {
	p := &h.presence
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	return same(p.Instance, agent.Instance) && same(p.Incarnation, agent.Incarnation)
}

// byHost groups items by host, in order of appearance.
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

func (s *Sweeper) resendOf(ctx context.Context, task *procfleet.Task, page []procfleet.ItemResult, is lost) error {
	hosts, err := s.resends.lostByHost(ctx, page, is)
	if err != nil || len(hosts) == 0 {
		return err
	}
	ctx, span := s.traceSweep(ctx, task, metrics.SweepResend)
	defer span.End()
	s.cfg.Link.Metrics.Sweep(metrics.SweepResend, len(hosts))
	var results []procfleet.Result
	for _, reply := range s.resends.sendAll(ctx, task, hosts) {
		h := hosts[reply.host]
		if len(reply.unknown) == 0 || h.presence.Conflict || !h.announced(reply.agent) {
			continue // the agent that replied may differ from the agent that accepted the items
		}
		s.cfg.Log.WithFields(logrus.Fields{"task": task.ID, "host": h.host.String(), "items": len(reply.unknown)}).
			Warn("delivered items unknown to the agent")
		for _, item := range reply.unknown {
			results = append(results, agentlink.ServerResult(item, procfleet.CodeFailed, procfleet.ReasonCommandFailed,
				lostMessage(h, task), s.cfg.Link.Clock.Now()))
		}
	}
	if len(results) == 0 {
		return nil
	}
	_, err = s.cfg.Recorder.Record(ctx, task.ID, results)
	return err
}

func lostMessage(h *itemsOfHost, task *procfleet.Task) string {
	what := "agent of host %s lost the command after accepting it"
	if h.presence.Since.After(task.CreatedAt) {
		what = "agent of host %s was reinstalled after accepting the command"
	}
	return fmt.Sprintf(what+", outcome unknown: query the status, then repeat if needed", h.host)
}

// resender sends resend requests to agents.
type resender struct{ cfg *Config }

// lostByHost groups the lost items of a page by host.
func (q *resender) lostByHost(ctx context.Context, page []procfleet.ItemResult, is lost) ([]*itemsOfHost, error) {
	agents, err := q.agentsOf(ctx, page)
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

// agentsOf returns the presences of the hosts of all items.
func (q *resender) agentsOf(ctx context.Context, pages ...[]procfleet.ItemResult) (map[procfleet.Host]*taskstore.Presence, error) {
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
	presences, err := q.cfg.Store.Presences(ctx, hosts)
	if err != nil {
		return nil, fmt.Errorf("look up agents: %w", err)
	}
	for i, host := range hosts {
		agents[host] = &presences[i]
	}
	return agents, nil
}

// resendReply is an agent's reply to a resend request.
type resendReply struct {
	host    int                     // index into the requested hosts
	agent   agentproto.AgentProcess // the agent process that replied
	unknown []int                   // items that the agent never accepted
	known   []int                   // items that the agent accepted; their results will arrive
}

// sendAll sends resend requests to all hosts concurrently and returns the replies that
// arrive within ResendWait. The next visit repeats the others.
func (q *resender) sendAll(ctx context.Context, task *procfleet.Task, hosts []*itemsOfHost) []resendReply {
	batch := q.cfg.Requester.Begin(len(hosts))
	defer batch.End()
	waiting := 0
	for i, h := range hosts {
		if err := q.send(batch, i, task, h); err != nil {
			q.cfg.Log.WithError(err).WithField("host", h.host.String()).Warn("resend request failed")
			continue
		}
		waiting++
	}
	timer := time.NewTimer(q.cfg.Timing.ResendWait)
	defer timer.Stop()
	var replies []resendReply
	for ; waiting > 0; waiting-- {
		select {
		case r := <-batch.Replies:
			if reply, ok := q.readReply(batch, &r, hosts); ok {
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

func (q *resender) send(batch *agentlink.RequestBatch, i int, task *procfleet.Task, h *itemsOfHost) error {
	data, err := agentproto.Encode(&agentproto.Resend{
		Header: agentproto.Header{Type: agentproto.TypeResend, ID: batch.ReplySubject(i, 0), Sent: q.cfg.Link.Clock.Now()},
		Task:   string(task.ID), Lane: bus.ResultLane(task.Lane), Host: h.host.String(), Items: h.items,
	})
	if err != nil {
		return err
	}
	header := q.cfg.Link.Auth.Sign(nil, h.host, &fleetkey.Message{Purpose: agentproto.TypeResend, Body: data})
	return batch.Send(i, 0, agentproto.AgentSubject(int64(h.host.Cloud), h.host.Addr), header, data)
}

// readReply decodes a reply and returns the items that the request named. It returns
// false for refusals and no responders.
func (q *resender) readReply(batch *agentlink.RequestBatch, r *agentlink.Reply, hosts []*itemsOfHost) (resendReply, bool) {
	if r.NoResponders || r.Host >= len(hosts) {
		return resendReply{}, false
	}
	var reply agentproto.ResendReply
	message := fleetkey.Message{Purpose: agentproto.TypeResendReply, Answers: batch.ReplySubject(r.Host, r.Try), Body: r.Data}
	if q.cfg.Link.Auth.Verify(r.Header, hosts[r.Host].host, &message) != nil ||
		agentproto.Decode(r.Data, agentproto.TypeResendReply, &reply) != nil || reply.Refused != "" {
		return resendReply{}, false
	}
	requested := make(map[int]bool, len(hosts[r.Host].items))
	for _, item := range hosts[r.Host].items {
		requested[item] = true
	}
	only := func(items []int) (of []int) {
		for _, item := range items {
			if requested[item] {
				of = append(of, item)
			}
		}
		return of
	}
	return resendReply{
		host: r.Host, agent: agentproto.AgentProcess{Instance: reply.Instance, Incarnation: reply.Incarnation},
		unknown: only(reply.Unknown), known: only(append(reply.Sent, reply.Running...)),
	}, true
}
