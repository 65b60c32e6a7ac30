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
	if !plain(c.Task) {
		return l.refuse(a, agentproto.RefusedUndecodable, "task is not an id")
	}
	if l.fresh(&c) {
		for _, item := range c.Items {
			l.memory.remember(c.Task, item.Item, now)
		}
		l.later(outcome{command: &c, agent: a, accepted: now})
		return appendReply(nil, l.header(agentproto.TypeReply), a.instance, c.Items), nil
	}
	return l.answer(a, c, now)
}

// fresh reports whether every item is new and has an action that succeeds.
func (l *link) fresh(c *command) bool {
	for _, item := range c.Items {
		if _, known := l.memory.recall(c.Task, item.Item); known || !knownAction(item.Action) {
			return false
		}
	}
	return true
}

// answer is accept for a command of which something is a repeat or refused.
func (l *link) answer(a *agent, c command, now time.Time) ([]byte, error) {
	reply := agentproto.Reply{Header: l.header(agentproto.TypeReply), Instance: a.instance}
	reply.Items = make([]agentproto.ReplyItem, len(c.Items))
	accepted := c
	accepted.Items = nil
	for i, item := range c.Items {
		reply.Items[i].Item = item.Item
		at, known := l.memory.recall(c.Task, item.Item)
		switch {
		case !knownAction(item.Action):
			reply.Items[i].Result = unknownAction(item, now)
		case !known:
			l.memory.remember(c.Task, item.Item, now)
			accepted.Items = append(accepted.Items, item)
		case !at.Add(l.cfg.Latency).After(now):
			reply.Items[i].Result = success(item, at, now)
		}
	}
	if len(accepted.Items) > 0 {
		l.later(outcome{command: &accepted, agent: a, accepted: now})
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

// simulatedPID is the pid of every simulated process.
const simulatedPID = "1000"

// success is the outcome of one item, as appendResults writes it.
func success(item commandItem, accepted, now time.Time) *agentproto.Result {
	r := &agentproto.Result{
		Item: item.Item, Code: agentproto.CodeSuccess, Reason: agentproto.ReasonSucceeded, Message: "success",
		Status: &agentproto.Status{At: now, Phase: "stopped"}, AcceptedAt: accepted, FinishedAt: now,
	}
	if leavesRunning(item.Action) {
		r.Status = &agentproto.Status{At: now, Running: true, Supervised: true, Phase: "running", PID: 1000}
	}
	return r
}

func unknownAction(item commandItem, now time.Time) *agentproto.Result {
	return &agentproto.Result{
		Item: item.Item, Code: agentproto.CodeUnknownAction, Reason: agentproto.ReasonRefused,
		Message: fmt.Sprintf("unknown action %q", item.Action), AcceptedAt: now, FinishedAt: now,
	}
}

func leavesRunning(action string) bool {
	switch action {
	case agentproto.ActionStart, agentproto.ActionStatus, agentproto.ActionSupervise, agentproto.ActionRestart, agentproto.ActionReload:
		return true
	}
	return false
}

func knownAction(action string) bool {
	switch action {
	case agentproto.ActionStop, agentproto.ActionKill, agentproto.ActionRelease:
		return true
	}
	return leavesRunning(action)
}
