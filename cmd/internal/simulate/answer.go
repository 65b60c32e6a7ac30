package simulate

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// command is an [agentproto.Command] without the specs, which simulated agents do not use.
type command struct {
	ID           string        `json:"id"`
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

// messageType returns the type of a message. Encoders of procfleet write the type first, so
// that decoding the type of a command is rarely necessary.
func messageType(data []byte) string {
	if bytes.HasPrefix(data, []byte(`{"type":"`+agentproto.TypeCommand+`"`)) {
		return agentproto.TypeCommand
	}
	kind, err := agentproto.PeekType(data)
	if err != nil {
		return ""
	}
	return kind
}

// accept returns the reply to a command and queues the results of the command.
func (l *link) accept(a *agent, data []byte) (reply, error) {
	now := time.Now().UTC()
	var c command
	if err := json.Unmarshal(data, &c); err != nil {
		return l.refuse(a, "", agentproto.RefusedUndecodable, err.Error())
	}
	if reason := l.refusal(a, &c, now); reason != "" {
		return l.refuse(a, c.ID, reason, "refused by a simulated agent")
	}
	if !plain(c.Task) {
		return l.refuse(a, c.ID, agentproto.RefusedUndecodable, "task is not an id")
	}
	if l.fresh(&c) {
		for _, item := range c.Items {
			l.memory.remember(c.Task, item.Item, now)
		}
		results := l.cfg.Latency == 0 && onlyStatus(c.Items) // as agents do, return results of status in the reply
		if !results {
			l.later(outcome{command: &c, agent: a, accepted: now})
		}
		data := appendReply(nil, l.header(agentproto.TypeReply), a.instance, c.Items, results, now)
		return reply{agentproto.TypeReply, c.ID, data}, nil
	}
	return l.answer(a, c, now)
}

// onlyStatus reports whether all items have the action status, so that the reply contains
// their results.
func onlyStatus(items []commandItem) bool {
	return !slices.ContainsFunc(items, func(i commandItem) bool { return i.Action != agentproto.ActionStatus })
}

// fresh reports whether every item of c is new and has a known action.
func (l *link) fresh(c *command) bool {
	for _, item := range c.Items {
		if _, known := l.memory.recall(c.Task, item.Item); known || !knownAction(item.Action) {
			return false
		}
	}
	return true
}

// answer is [link.accept] for a command in which some items are repeated or have an unknown
// action.
func (l *link) answer(a *agent, c command, now time.Time) (reply, error) {
	r := agentproto.Reply{Header: l.header(agentproto.TypeReply), Instance: a.instance, Incarnation: a.instance}
	r.Items = make([]agentproto.ReplyItem, len(c.Items))
	accepted := c
	accepted.Items = nil
	for i, item := range c.Items {
		r.Items[i].Item = item.Item
		at, known := l.memory.recall(c.Task, item.Item)
		switch {
		case !knownAction(item.Action):
			r.Items[i].Result = unknownAction(item, now)
		case !known:
			l.memory.remember(c.Task, item.Item, now)
			accepted.Items = append(accepted.Items, item)
		case at.IsZero():
			r.Items[i].Result = canceled(item.Item, item.Action, now)
		case !at.Add(l.cfg.Latency).After(now):
			r.Items[i].Result = success(item, at, now)
		}
	}
	if len(accepted.Items) > 0 {
		l.later(outcome{command: &accepted, agent: a, accepted: now})
	}
	return encoded(&r, c.ID)
}

// encoded encodes m as the reply to the message with id answers.
func encoded(m agentproto.Message, answers string) (reply, error) {
	data, err := agentproto.Encode(m)
	return reply{m.MessageType(), answers, data}, err
}

// refusal returns the reason to reject the command as a whole, or "" to accept it.
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

// refuse returns a reply that rejects the command with the given id.
func (l *link) refuse(a *agent, id, reason, message string) (reply, error) {
	return encoded(&agentproto.Reply{
		Header: l.header(agentproto.TypeReply), Instance: a.instance, Incarnation: a.instance, Refused: reason, Message: message,
	}, id)
}

// resend returns the reply to a resend request and queues the results of the finished items.
func (l *link) resend(a *agent, data []byte) (reply, error) {
	var request agentproto.Resend
	if err := agentproto.Decode(data, agentproto.TypeResend, &request); err != nil {
		return reply{}, err
	}
	now := time.Now().UTC()
	r := agentproto.ResendReply{Header: l.header(agentproto.TypeResendReply), Instance: a.instance, Incarnation: a.instance}
	again := outcome{command: &command{Task: request.Task, Lane: request.Lane}, agent: a, at: now}
	for _, item := range request.Items {
		at, known := l.memory.recall(request.Task, item)
		switch {
		case !known:
			r.Unknown = append(r.Unknown, item)
		case at.IsZero(): // its result was in the reply to the cancel
			r.Unknown = append(r.Unknown, item)
		case at.Add(l.cfg.Latency).After(now):
			r.Running = append(r.Running, item)
		default:
			r.Sent = append(r.Sent, item)
			again.accepted = at
			again.command.Items = append(again.command.Items, commandItem{Item: item, Action: agentproto.ActionStatus})
		}
	}
	if len(r.Sent) > 0 {
		l.due = slices.Insert(l.due, 0, again)
	}
	return encoded(&r, request.ID)
}

// verify returns an error if msg has no valid signature of a server for its type.
func (a *agent) verify(msg *nats.Msg, messageType string) error {
	return a.keys.current().Verify(msg.Header, &fleetkey.Message{Purpose: messageType, Body: msg.Data})
}

// simulatedPID is the pid of every simulated process.
const simulatedPID = "1000"

// success returns the result of a successful item.
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

// remembered is the maximum number of items in the memory of a link. Workers repeat
// commands within seconds; a resend request of the sweep may name older items.
const remembered = 256 << 10

type itemID struct {
	task string
	item int
}

// memory holds the acceptance times of the latest items; zero for canceled ones. It evicts the oldest item first.
type memory struct {
	accepted map[itemID]time.Time
	ring     []itemID
	next     int
	task     string // id of the latest task; the items of the task share this string
}

func newMemory() *memory { return &memory{accepted: make(map[itemID]time.Time)} }

func (m *memory) recall(task string, item int) (time.Time, bool) {
	at, known := m.accepted[itemID{task, item}]
	return at, known
}

func (m *memory) remember(task string, item int, at time.Time) {
	if m.task != task {
		m.task = task
	}
	id := itemID{m.task, item}
	if len(m.ring) < remembered {
		m.ring = append(m.ring, id)
	} else {
		delete(m.accepted, m.ring[m.next])
		m.ring[m.next] = id
		m.next = (m.next + 1) % remembered
	}
	m.accepted[id] = at
}
