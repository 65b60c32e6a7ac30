package simulate

import (
	"slices"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// cancel returns the reply to a cancel. Accepted items have begun; an interrupt ends them with
// a failure.
func (l *link) cancel(a *agent, data []byte) (reply, error) {
	var request agentproto.Cancel
	if err := agentproto.Decode(data, agentproto.TypeCancel, &request); err != nil {
		return reply{}, err
	}
	now := time.Now().UTC()
	r := agentproto.CancelReply{Header: l.header(agentproto.TypeCancelReply), Instance: a.instance, Incarnation: a.instance}
	for _, item := range request.Items {
		at, known := l.memory.recall(request.Task, item.Item)
		d := agentproto.CancelDecision{Item: item.Item, Decision: agentproto.DecisionBegun}
		switch {
		case !known:
			l.memory.remember(request.Task, item.Item, time.Time{})
			d.Decision, d.Result = agentproto.DecisionTombstoned, canceled(item.Item, item.Action, now)
		case at.IsZero():
			d.Decision, d.Result = agentproto.DecisionOver, canceled(item.Item, item.Action, now)
		case !at.Add(l.cfg.Latency).After(now) && l.cfg.Latency > 0:
			d.Decision, d.Result = agentproto.DecisionOver, success(commandItem{item.Item, item.Action}, at, now)
		}
		r.Items = append(r.Items, d)
	}
	if request.Interrupt {
		l.interrupt(a, request.Task, now)
	}
	return encoded(&r, request.ID)
}

// interrupt makes the results of a task on an agent due now, as failures.
func (l *link) interrupt(a *agent, task string, now time.Time) {
	var ended []outcome
	l.due = slices.DeleteFunc(l.due, func(o outcome) bool {
		ends := o.agent == a && o.command.Task == task
		if ends {
			o.at, o.interrupted = now, true
			ended = append(ended, o)
		}
		return ends
	})
	l.due = slices.Concat(ended, l.due)
}

func canceled(item int, action string, now time.Time) *agentproto.Result {
	return &agentproto.Result{
		Item: item, Code: agentproto.CodeFailed, Reason: agentproto.ReasonCancelled,
		Message: action + ": canceled before it began", FinishedAt: now,
	}
}
