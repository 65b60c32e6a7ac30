package sweep

import (
	"context"
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
)

// itemsOfHost has the items of one host for a resend request.
type itemsOfHost struct {
	host  procfleet.Host
	items []int // indexes into the task
}

// announced reports whether agent, which replied, is the agent process of the presence
// read before the request.
func announced(p *taskstore.Presence, agent agentproto.AgentProcess) bool {
	return p.Instance == agent.Instance && p.Incarnation == agent.Incarnation
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

// agentsOf returns the presences of the hosts of all items.
func (s *Sweeper) agentsOf(ctx context.Context, pages ...[]procfleet.ItemResult) (map[procfleet.Host]*taskstore.Presence, error) {
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
	presences, err := s.cfg.Store.Presences(ctx, hosts)
	if err != nil {
		return nil, fmt.Errorf("read presences: %w", err)
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

// sendResends sends resend requests to all hosts concurrently and returns the replies that
// arrive within ResendWait. The next visit repeats the others.
func (s *Sweeper) sendResends(ctx context.Context, task *procfleet.Task, hosts []*itemsOfHost) []resendReply {
	batch := s.cfg.Requester.Begin(len(hosts))
	defer batch.End()
	waiting := 0
	for i, h := range hosts {
		if err := s.sendResend(batch, i, task, h); err != nil {
			s.cfg.Log.WithError(err).WithField("host", h.host.String()).Warn("resend request failed")
			continue
		}
		waiting++
	}
	timer := time.NewTimer(s.cfg.Timing.ResendWait)
	defer timer.Stop()
	var replies []resendReply
	for ; waiting > 0; waiting-- {
		select {
		case r := <-batch.Replies:
			if reply, ok := s.readReply(batch, &r, hosts); ok {
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

func (s *Sweeper) sendResend(batch *agentlink.RequestBatch, i int, task *procfleet.Task, h *itemsOfHost) error {
	data, err := agentproto.Encode(&agentproto.Resend{
		Header: agentproto.Header{Type: agentproto.TypeResend, ID: batch.ReplySubject(i, 0), Sent: s.cfg.Clock.Now()},
		Task:   string(task.ID), Lane: bus.ResultLane(task.Lane), Host: h.host.String(), Items: h.items,
	})
	if err != nil {
		return err
	}
	header := s.cfg.Auth.Sign(nil, h.host, &fleetkey.Message{Purpose: agentproto.TypeResend, Body: data})
	return batch.Send(i, 0, agentproto.AgentSubject(int64(h.host.Cloud), h.host.Addr), header, data)
}

// readReply decodes a reply and returns the items that the request named. It returns
// false for refusals and no responders.
func (s *Sweeper) readReply(batch *agentlink.RequestBatch, r *agentlink.Reply, hosts []*itemsOfHost) (resendReply, bool) {
	if r.NoResponders || r.Host >= len(hosts) {
		return resendReply{}, false
	}
	var reply agentproto.ResendReply
	message := fleetkey.Message{Purpose: agentproto.TypeResendReply, Answers: batch.ReplySubject(r.Host, r.Try), Body: r.Data}
	if s.cfg.Auth.Verify(r.Header, hosts[r.Host].host, &message) != nil ||
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
