package simulate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// command is what a simulated agent reads of an [agentproto.Command]: not the
// specs, which it has no use for.
type command struct {
	Task         string        `json:"task"`
	Lane         string        `json:"lane"`
	Host         string        `json:"host"`
	Instance     string        `json:"instance"`
	AcceptBefore time.Time     `json:"accept_before"`
	Items        []commandItem `json:"items"`
}

type commandItem struct {
	Item   int    `json:"item"`
	Action string `json:"action"`
}

// isCommand tells a command from a resend by the type, which our encoders
// write first.
func isCommand(data []byte) bool {
	if bytes.HasPrefix(data, []byte(`{"type":"`+agentproto.TypeCommand+`"`)) {
		return true
	}
	typ, err := agentproto.PeekType(data)
	return err == nil && typ == agentproto.TypeCommand
}

// accept answers a command and queues its results.
func (l *link) accept(a *agent, data []byte) ([]byte, error) {
	now := time.Now().UTC()
	var c command
	if err := json.Unmarshal(data, &c); err != nil {
		return l.refuse(a, agentproto.RefusedUndecodable, err.Error())
	}
	if word := l.refusal(a, &c, now); word != "" {
		return l.refuse(a, word, "refused by a simulated agent")
	}
	reply := agentproto.Reply{Header: l.header(agentproto.TypeReply), Instance: a.instance}
	reply.Items = make([]agentproto.ReplyItem, len(c.Items))
	fresh := c
	fresh.Items = nil
	for i, item := range c.Items {
		reply.Items[i].Item = item.Item
		if at, known := l.memory.recall(c.Task, item.Item); known {
			if !at.Add(l.cfg.Latency).After(now) {
				reply.Items[i].Result = result(item.Item, item.Action, at, now)
			}
			continue
		}
		l.memory.remember(c.Task, item.Item, now)
		fresh.Items = append(fresh.Items, item)
	}
	if len(fresh.Items) > 0 {
		l.later(outcome{command: &fresh, agent: a, accepted: now})
	}
	return agentproto.Encode(&reply)
}

// refusal says why an agent would turn the whole command away; "" if not.
func (l *link) refusal(a *agent, c *command, now time.Time) string {
	switch {
	case c.Host != a.host:
		return agentproto.RefusedHost
	case c.Instance != "" && c.Instance != a.instance:
		return agentproto.RefusedInstance
	case now.After(c.AcceptBefore):
		return agentproto.RefusedExpired
	}
	return ""
}

func (l *link) refuse(a *agent, word, message string) ([]byte, error) {
	return agentproto.Encode(&agentproto.Reply{
		Header: l.header(agentproto.TypeReply), Instance: a.instance, Refused: word, Message: message,
	})
}

// resend answers which of the items it knows and publishes their results.
func (l *link) resend(a *agent, data []byte) ([]byte, error) {
	var r agentproto.Resend
	if err := agentproto.Decode(data, agentproto.TypeResend, &r); err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	reply := agentproto.ResendReply{Header: l.header(agentproto.TypeResendReply), Instance: a.instance}
	again := outcome{command: &command{Task: r.Task, Lane: r.Lane}, agent: a, at: now}
	for _, item := range r.Items {
		at, known := l.memory.recall(r.Task, item)
		switch {
		case !known:
			reply.Unknown = append(reply.Unknown, item)
		case at.Add(l.cfg.Latency).After(now):
			reply.Running = append(reply.Running, item)
		default:
			reply.Sent = append(reply.Sent, item)
			again.accepted = at
			again.command.Items = append(again.command.Items, commandItem{Item: item, Action: agentproto.ActionStatus})
		}
	}
	if len(reply.Sent) > 0 {
		l.due = slices.Insert(l.due, 0, again)
	}
	return agentproto.Encode(&reply)
}

// results encodes the results of a command.
func (l *link) results(o outcome) ([]byte, error) {
	now := time.Now().UTC()
	m := agentproto.Results{
		Header: l.header(agentproto.TypeResults), Task: o.command.Task,
		Host: o.agent.host, Instance: o.agent.instance,
		Results: make([]agentproto.Result, len(o.command.Items)),
	}
	for i, item := range o.command.Items {
		m.Results[i] = *result(item.Item, item.Action, o.accepted, now)
	}
	return agentproto.Encode(&m)
}

// result is the outcome of one item: success, with a status such as a small
// real process has.
func result(item int, action string, accepted, now time.Time) *agentproto.Result {
	r := &agentproto.Result{
		Item: item, Code: agentproto.CodeSuccess, Reason: agentproto.ReasonSucceeded, Message: "success",
		AcceptedAt: accepted, StartedAt: accepted, FinishedAt: now,
	}
	switch action {
	case agentproto.ActionStart, agentproto.ActionStatus, agentproto.ActionSupervise, agentproto.ActionRestart, agentproto.ActionReload:
		r.Status = &agentproto.Status{
			At: now, Running: true, Supervised: true, Phase: "running", PID: 1000 + item,
			Stat: "S", Threads: 1, StartedAt: accepted, MemoryBytes: 8 << 20,
		}
	case agentproto.ActionStop, agentproto.ActionKill, agentproto.ActionRelease:
		r.Status = &agentproto.Status{At: now, Phase: "stopped"}
	default:
		r.Code, r.Reason = agentproto.CodeUnknownAction, agentproto.ReasonRefused
		r.Message = fmt.Sprintf("unknown action %q", action)
	}
	return r
}
