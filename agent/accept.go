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

// unpack fills c.ops with an operation per valid item, and refuses the invalid items.
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
			fault = fmt.Errorf("the command has no spec %d", item.Spec)
		} else {
			fault = faults[item.Spec]
		}
		if fault != nil {
			c.items[len(c.items)-1].Result = refused(item.Item, item.Action, agentproto.CodeFailed, "bad spec: "+fault.Error(), now)
			continue
		}
		c.itemIndex = append(c.itemIndex, len(c.items)-1)
		c.ops = append(c.ops, journal.Op{
			ID: journal.ID{Task: c.body.Task, Item: item.Item}, Lane: c.body.Lane, Fence: item.Fence,
			Action: item.Action, Spec: specs[item.Spec], AcceptedAt: now, ReceivedAt: server, NotAfter: c.body.NotAfter, Trace: trace,
		})
	}
}

func refused(item int, action string, code int, why string, now time.Time) *agentproto.Result {
	r := agentproto.Result{
		Item: item, Code: code, Reason: agentproto.ReasonRefused, Message: action + ": " + why,
		AcceptedAt: now, FinishedAt: now,
	}.Bounded()
	return &r
}

// accept journals the operations of all commands with one fsync, replies to each command,
// and then submits the new operations to the engine.
func (in *intake) accept(ctx context.Context, commands []*command) {
	in.resume() // submit the recovered operations first: they were accepted earlier
	var ops []journal.Op
	for _, c := range commands {
		in.unpack(ctx, c)
		ops = append(ops, c.ops...)
	}
	admissions, err := in.ledger.Receive(ops)
	if err != nil {
		admissions = unavailable(ops, err)
	}
	in.crash(CrashReceived)
	for _, c := range commands {
		mine := admissions[:len(c.ops)]
		admissions = admissions[len(c.ops):]
		if !in.clock.surelyBefore(c.body.AcceptBefore) {
			in.refuseExpired(c, mine)
		}
		if c.observesOnly() {
			in.replyWithResults(c, mine)
		} else {
			in.reply(c, mine)
		}
		for i := range c.ops {
			if mine[i] == (journal.Admission{}) {
				in.engine.Submit(c.ops[i])
			}
		}
	}
}

// refuseExpired refuses the new operations of a command that expired while it was journaled,
// on a slow disk or while the agent was stopped: the sender of the command may already have
// retried or given up.
func (in *intake) refuseExpired(c *command, admissions []journal.Admission) {
	for i, op := range c.ops {
		if admissions[i] != (journal.Admission{}) {
			continue
		}
		r := refused(op.Item, op.Action, agentproto.CodeFailed, "expired while it was being accepted, not executed", op.AcceptedAt)
		admissions[i].Refused = r
		if err := in.ledger.Finish(op.ID, *r); err != nil {
			in.log.WithError(err).WithFields(logrus.Fields{"task": op.Task, "item": op.Item}).Warn("expiry not written to the journal")
			continue
		}
		in.reporter.add(op.ID, op.Lane, op.Trace)
	}
}

func unavailable(ops []journal.Op, err error) []journal.Admission {
	admissions := make([]journal.Admission, len(ops))
	for i, op := range ops {
		admissions[i].Refused = refused(op.Item, op.Action, agentproto.CodeAgentAbnormal, err.Error(), op.AcceptedAt)
	}
	return admissions
}
