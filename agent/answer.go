package agent

import (
	"encoding/json"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// replyBytes bounds the results in one reply, well below what NATS takes.
const replyBytes = 512 << 10

// answer replies to a command. Stored results that would make the reply too
// large are published again instead.
func (in *intake) answer(c *command, verdicts []journal.Verdict) {
	size := 0
	for i, v := range verdicts {
		reply := &c.items[c.at[i]]
		reply.Result = v.Refused
		if v.Result == nil {
			continue
		}
		data, err := json.Marshal(v.Result)
		if size += len(data); err != nil || size > replyBytes {
			in.reporter.add(c.ops[i].ID, c.ops[i].Lane, c.ops[i].Trace)
			continue
		}
		reply.Result = v.Result
	}
	for _, item := range c.items {
		if item.Result != nil {
			in.clock.correct(item.Result)
		}
	}
	in.log.WithFields(logrus.Fields{"task": c.body.Task, "items": len(c.items)}).Debug("command replied")
	in.respond(c.msg, &agentproto.Reply{
		Header: newHeader(agentproto.TypeReply), Instance: in.self.instance, Incarnation: in.self.incarnation, Items: c.items,
	})
}

// resend publishes the results of finished items again and says what it
// knows of the others.
func (in *intake) resend(msg *nats.Msg) {
	var ask agentproto.Resend
	reply := &agentproto.ResendReply{Header: newHeader(agentproto.TypeResendReply), Instance: in.self.instance, Incarnation: in.self.incarnation}
	if err := agentproto.Decode(msg.Data, agentproto.TypeResend, &ask); err != nil {
		reply.Refused, reply.Message = agentproto.RefusedUndecodable, err.Error()
	} else if err := agentproto.ValidLane(ask.Lane); err != nil {
		reply.Refused, reply.Message = agentproto.RefusedUndecodable, err.Error()
	} else {
		reply.Refused, reply.Message = in.foreign(ask.Host, ask.Instance)
	}
	if reply.Refused == "" {
		in.sortResend(&ask, reply)
	}
	in.respond(msg, reply)
}

func (in *intake) sortResend(ask *agentproto.Resend, reply *agentproto.ResendReply) {
	for _, item := range ask.Items {
		id := journal.ID{Task: ask.Task, Item: item}
		switch _, open, known := in.ledger.Result(id); {
		case !known:
			reply.Unknown = append(reply.Unknown, item)
		case open:
			reply.Running = append(reply.Running, item)
		default:
			reply.Sent = append(reply.Sent, item)
			in.reporter.add(id, ask.Lane, "")
		}
	}
}

// refuse turns a whole message away, whatever its type. The message may be
// from anybody.
func (in *intake) refuse(msg *nats.Msg, word, why string) {
	in.log.WithFields(logrus.Fields{"refused": word, "reason": why}).Debug("message refused")
	if kind, err := agentproto.PeekType(msg.Data); err == nil && kind == agentproto.TypeResend {
		in.respond(msg, &agentproto.ResendReply{
			Header: newHeader(agentproto.TypeResendReply), Instance: in.self.instance, Incarnation: in.self.incarnation, Refused: word, Message: why,
		})
		return
	}
	in.respond(msg, &agentproto.Reply{
		Header: newHeader(agentproto.TypeReply), Instance: in.self.instance, Incarnation: in.self.incarnation, Refused: word, Message: why,
	})
}

// respond answers a message. An answer that is lost is asked for again.
func (in *intake) respond(msg *nats.Msg, reply agentproto.Message) {
	if msg.Reply == "" {
		return // nobody waits
	}
	_, id, _ := agentproto.Peek(msg.Data) // what has none is answered all the same
	data, err := agentproto.Encode(reply)
	if err == nil {
		err = msg.RespondMsg(in.self.signed("", reply.MessageType(), id, data))
	}
	if err != nil {
		in.log.WithError(err).Debug("reply not sent")
	}
}
