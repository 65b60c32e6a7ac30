package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// cancel decides about the items of a [agentproto.Cancel] in the journal, interrupts those
// that have begun if the request says so, and replies with the decisions.
func (in *intake) cancel(msg *nats.Msg) {
	var request agentproto.Cancel
	err := agentproto.Decode(msg.Data, agentproto.TypeCancel, &request)
	if err == nil {
		err = validCancel(&request)
	}
	if err != nil {
		in.refuse(msg, agentproto.RefusedUndecodable, err.Error())
		return
	}
	if refused, why := in.misaddressed(request.Host, request.Instance); refused != "" {
		in.refuse(msg, refused, why)
		return
	}
	decisions, err := in.ledger.Cancel(cancellations(&request))
	if err != nil {
		in.refuse(msg, agentproto.RefusedJournal, err.Error())
		return
	}
	in.crash(CrashCanceled)
	reply := &agentproto.CancelReply{Header: newHeader(agentproto.TypeCancelReply), Instance: in.instance, Incarnation: in.incarnation}
	for i, d := range decisions {
		item := &request.Items[i]
		id := journal.ID{Task: request.Task, Item: item.Item}
		if d.Kind == agentproto.DecisionDropped {
			in.reporter.add(id, request.Lane, "") // the reply may be lost
		}
		if d.Result != nil {
			in.clock.correct(d.Result)
		} else if request.Interrupt {
			in.engine.Interrupt(item.Key, id)
		}
		reply.Items = append(reply.Items, agentproto.CancelDecision{Item: item.Item, Decision: d.Kind, Result: d.Result})
	}
	in.log.WithFields(logrus.Fields{"task": request.Task, "items": len(request.Items), "interrupt": request.Interrupt}).Info("items canceled")
	in.respond(msg, reply)
}

func validCancel(request *agentproto.Cancel) error {
	switch {
	case request.Task == "":
		return errors.New("task is missing")
	case len(request.Items) > agentproto.MaxItems:
		return fmt.Errorf("%d items, at most %d are allowed", len(request.Items), agentproto.MaxItems)
	}
	return agentproto.ValidLane(request.Lane)
}

func cancellations(request *agentproto.Cancel) []journal.Cancellation {
	now := time.Now().UTC()
	all := make([]journal.Cancellation, len(request.Items))
	for i, item := range request.Items {
		all[i] = journal.Cancellation{
			ID: journal.ID{Task: request.Task, Item: item.Item}, Lane: request.Lane, Action: item.Action, Fence: item.Fence, Key: item.Key,
			Result: agentproto.Result{
				Item: item.Item, Code: agentproto.CodeFailed, Reason: agentproto.ReasonCancelled,
				Message: item.Action + ": canceled before it began", FinishedAt: now,
			},
		}
	}
	return all
}
