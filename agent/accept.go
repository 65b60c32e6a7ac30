package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// unpack makes an operation of each item that is sound; the others get their
// result at once.
func (in *intake) unpack(ctx context.Context, c *command) {
	trace := tracecontext.Text(tracecontext.Extract(ctx, c.msg.Header))
	now, server := time.Now().UTC(), in.clock.now().UTC()
	specs := make([]agentproto.Spec, len(c.body.Specs))
	faults := make([]error, len(c.body.Specs))
	for i, raw := range c.body.Specs {
		faults[i] = json.Unmarshal(raw, &specs[i])
		if faults[i] == nil && specs[i].Key == "" {
			faults[i] = errors.New("key is missing")
		}
	}
	seen := make(map[int]bool, len(c.body.Items))
	for _, item := range c.body.Items {
		if seen[item.Item] {
			continue // the reply has one entry per item
		}
		seen[item.Item] = true
		c.items = append(c.items, agentproto.ReplyItem{Item: item.Item})
		var fault error
		if item.Spec < 0 || item.Spec >= len(specs) {
			fault = fmt.Errorf("there is no spec %d in this command", item.Spec)
		} else {
			fault = faults[item.Spec]
		}
		if fault != nil {
			c.items[len(c.items)-1].Result = refused(item, agentproto.CodeFailed, "bad spec: "+fault.Error(), now)
			continue
		}
		c.at = append(c.at, len(c.items)-1)
		c.ops = append(c.ops, journal.Op{
			ID: journal.ID{Task: c.body.Task, Item: item.Item}, Lane: c.body.Lane, Fence: item.Fence,
			Action: item.Action, Spec: specs[item.Spec], AcceptedAt: now, ReceivedAt: server, NotAfter: c.body.NotAfter, Trace: trace,
		})
	}
}

func refused(item agentproto.CommandItem, code int, why string, now time.Time) *agentproto.Result {
	r := agentproto.Result{
		Item: item.Item, Code: code, Reason: agentproto.ReasonRefused, Message: item.Action + ": " + why,
		AcceptedAt: now, FinishedAt: now,
	}
	r = r.Bounded()
	return &r
}

// accept journals the operations of all commands at once, answers each
// command, and then has the new operations carried out.
func (in *intake) accept(ctx context.Context, commands []*command) {
	in.resume() // what was accepted before has its turn before
	var ops []journal.Op
	for _, c := range commands {
		in.unpack(ctx, c)
		ops = append(ops, c.ops...)
	}
	verdicts, err := in.ledger.Receive(ops)
	if err != nil {
		verdicts = unavailable(ops, err)
	}
	in.crash(CrashReceived)
	for _, c := range commands {
		mine := verdicts[:len(c.ops)]
		verdicts = verdicts[len(c.ops):]
		if !in.clock.surelyBefore(c.body.AcceptBefore) {
			in.giveUp(c, mine)
		}
		if c.onlyLooks() {
			in.answerPromptly(c, mine)
		} else {
			in.answer(c, mine)
		}
		for i := range c.ops {
			if mine[i] == (journal.Verdict{}) {
				in.engine.Submit(c.ops[i])
			}
		}
	}
}

// giveUp ends new operations of a command that expired while it was written
// down, on a slow disk or because the agent was frozen: whoever sent it may
// have given it up.
func (in *intake) giveUp(c *command, verdicts []journal.Verdict) {
	for i, op := range c.ops {
		if verdicts[i] != (journal.Verdict{}) {
			continue
		}
		item := agentproto.CommandItem{Item: op.Item, Action: op.Action}
		r := refused(item, agentproto.CodeFailed, "expired while it was being accepted, not executed", op.AcceptedAt)
		verdicts[i].Refused = r
		if err := in.ledger.Finish(op.ID, *r); err != nil {
			in.log.WithError(err).WithFields(logrus.Fields{"task": op.Task, "item": op.Item}).Warn("expiry not written to the journal")
			continue
		}
		in.reporter.add(op.ID, op.Lane, op.Trace)
	}
}

func unavailable(ops []journal.Op, err error) []journal.Verdict {
	verdicts := make([]journal.Verdict, len(ops))
	for i, op := range ops {
		item := agentproto.CommandItem{Item: op.Item, Action: op.Action}
		verdicts[i].Refused = refused(item, agentproto.CodeAgentAbnormal, err.Error(), op.AcceptedAt)
	}
	return verdicts
}
