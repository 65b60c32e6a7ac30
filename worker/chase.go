package worker

import (
	"context"
	"fmt"
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

// onlyLost takes items whose action must be over by now, and those whose
// agent came to be only after the task: it may have been reinstalled.
func onlyLost(task *procfleet.Task, now time.Time) lost {
	return func(item *procfleet.ItemResult, agent *taskstore.Presence) bool {
		if agent.Conflict {
			return false // the one of the two that answers may not be the one that knows
		}
		return now.After(task.CreatedAt.Add(item.Spec.Budget(item.Item.Action))) || agent.Since.After(task.CreatedAt)
	}
}

func everyItem(*procfleet.ItemResult, *taskstore.Presence) bool { return true }

const (
	chasePage = 1000 // items
	// chasePages bounds one visit; the next goes on where it ended.
	chasePages = 10
)

// chase asks agents to send results again of delivered items that count as
// lost, and ends the items that their agent does not know.
func (sh *shard) chase(ctx context.Context, task *procfleet.Task, is lost) error {
	cursor := sh.cursors[task.ID]
	for range chasePages {
		page, next, err := sh.store.Results(ctx, task.ID, taskstore.ResultQuery{
			State: procfleet.StateDelivered, Cursor: cursor, Limit: chasePage,
		})
		if err != nil {
			delete(sh.cursors, task.ID)
			return fmt.Errorf("list delivered items: %w", err)
		}
		if err := sh.chasePage(ctx, task, page, is); err != nil {
			return err
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	if cursor == "" {
		delete(sh.cursors, task.ID)
	} else {
		sh.cursors[task.ID] = cursor
	}
	return nil
}

// chased is one host that is asked for results.
type chased struct {
	host     procfleet.Host
	presence taskstore.Presence
	items    []int // of the task
}

func (sh *shard) chasePage(ctx context.Context, task *procfleet.Task, page []procfleet.ItemResult, is lost) error {
	hosts, err := sh.lostByHost(ctx, page, is)
	if err != nil || len(hosts) == 0 {
		return err
	}
	ctx, span := sh.traceSweep(ctx, task, sweepResend)
	defer span.End()
	sh.metrics.sweep(ctx, sweepResend, len(hosts))
	var results []procfleet.Result
	for _, unknown := range sh.askResend(ctx, task, hosts) {
		h := hosts[unknown.host]
		sh.log.WithFields(logrus.Fields{"task": task.ID, "host": h.host.String(), "items": len(unknown.items)}).
			Warn("agent does not know items that were delivered to it")
		for _, item := range unknown.items {
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

func lostMessage(h *chased, task *procfleet.Task) string {
	what := "agent of host %s lost the command after accepting it"
	if h.presence.Since.After(task.CreatedAt) {
		what = "agent of host %s was reinstalled after accepting the command"
	}
	return fmt.Sprintf(what+", outcome unknown: look with a status, then repeat if needed", h.host)
}

func (sh *shard) lostByHost(ctx context.Context, page []procfleet.ItemResult, is lost) ([]*chased, error) {
	at := make(map[procfleet.Host]int, len(page))
	var hosts []procfleet.Host
	for i := range page {
		host := page[i].Item.Target.Host
		if _, known := at[host]; !known {
			at[host] = len(hosts)
			hosts = append(hosts, host)
		}
	}
	if len(hosts) == 0 {
		return nil, nil
	}
	presences, err := sh.store.Presences(ctx, hosts)
	if err != nil {
		return nil, fmt.Errorf("look up agents: %w", err)
	}
	var lost []*chased
	byHost := make(map[procfleet.Host]*chased)
	for i := range page {
		host := page[i].Item.Target.Host
		agent := &presences[at[host]]
		if !is(&page[i], agent) {
			continue
		}
		h := byHost[host]
		if h == nil {
			h = &chased{host: host, presence: *agent}
			byHost[host] = h
			lost = append(lost, h)
		}
		h.items = append(h.items, page[i].Index)
	}
	return lost, nil
}

// unknownItems are items that a host's agent never accepted, as it says.
type unknownItems struct {
	host  int
	items []int
}

// askResend asks all hosts at once and gathers what answers in time. Whoever
// does not answer is asked at the next visit.
func (sh *shard) askResend(ctx context.Context, task *procfleet.Task, hosts []*chased) []unknownItems {
	asking := sh.asker.begin(len(hosts))
	defer asking.end()
	waiting := 0
	for i, h := range hosts {
		if err := sh.sendResend(asking, i, task, h); err != nil {
			sh.log.WithError(err).WithField("host", h.host.String()).Warn("agent not asked to send results again")
			continue
		}
		waiting++
	}
	timer := time.NewTimer(sh.timing.Sweep.ResendWait)
	defer timer.Stop()
	var unknown []unknownItems
	for ; waiting > 0; waiting-- {
		select {
		case a := <-asking.answers:
			if items := sh.unknownOf(asking, &a, hosts); len(items) > 0 {
				unknown = append(unknown, unknownItems{a.host, items})
			}
		case <-timer.C:
			return unknown
		case <-ctx.Done():
			return unknown
		}
	}
	return unknown
}

func (sh *shard) sendResend(asking *asking, i int, task *procfleet.Task, h *chased) error {
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

// unknownOf returns the items that were asked for and that the agent does not
// know. A refusal says nothing about them.
func (sh *shard) unknownOf(asking *asking, a *answer, hosts []*chased) []int {
	if a.nobody || a.host >= len(hosts) {
		return nil
	}
	var reply agentproto.ResendReply
	message := fleetkey.Message{Purpose: agentproto.TypeResendReply, Answers: asking.replySubject(a.host, a.try), Body: a.data}
	if sh.believer.believe(a.header, hosts[a.host].host, &message) != nil ||
		agentproto.Decode(a.data, agentproto.TypeResendReply, &reply) != nil || reply.Refused != "" {
		return nil
	}
	asked := make(map[int]bool, len(hosts[a.host].items))
	for _, item := range hosts[a.host].items {
		asked[item] = true
	}
	var unknown []int
	for _, item := range reply.Unknown {
		if asked[item] {
			unknown = append(unknown, item)
		}
	}
	return unknown
}
