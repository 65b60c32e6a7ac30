package agent

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// promptWithin is the maximum wait of a status command's reply for the results. Workers
// retry only after seconds.
const promptWithin = 50 * time.Millisecond

// prompt passes results to the replies that wait for them, which saves a request per
// result. A result that is not ready in time is published like any other result. It is safe
// for concurrent use.
type prompt struct {
	within  time.Duration // maximum wait of a reply for results
	mu      sync.Mutex
	awaited map[journal.ID]*awaited
}

// awaited is a result that replies wait for.
type awaited struct {
	replies []chan<- agentproto.Result
	publish bool // true if a reply was sent without the result
}

func newPrompt(within time.Duration) *prompt {
	return &prompt{within: within, awaited: map[journal.ID]*awaited{}}
}

// await sends the result of a new operation to reply, which must have free capacity for it.
func (p *prompt) await(id journal.ID, reply chan<- agentproto.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaited[id] = &awaited{replies: []chan<- agentproto.Result{reply}}
}

// join is await for a repeated operation. It returns false if no earlier reply waits for
// the result; the result is published then.
func (p *prompt) join(id journal.ID, reply chan<- agentproto.Result) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.awaited[id]
	if a != nil {
		a.replies = append(a.replies, reply)
	}
	return a != nil
}

// miss marks the result of an operation for publication, because a reply is sent without
// the result. It returns false if handOver has sent the result to the replies meanwhile.
func (p *prompt) miss(id journal.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.awaited[id]
	if a != nil {
		a.publish = true
	}
	return a != nil
}

// handOver sends a result to the replies that wait for it. It returns false if the result
// must be published, because no reply waits or a reply was sent without it.
func (p *prompt) handOver(id journal.ID, r *agentproto.Result) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.awaited[id]
	if a == nil {
		return false
	}
	delete(p.awaited, id)
	for _, reply := range a.replies {
		reply <- *r
	}
	return !a.publish
}

// replyWithResults replies to a status command in a goroutine, after waiting for the
// results. Call it before the new operations are submitted.
func (in *intake) replyWithResults(c *command, admissions []journal.Admission) {
	results := make(chan agentproto.Result, len(c.ops))
	open := map[int]int{} // index in admissions by item number
	for i, op := range c.ops {
		switch {
		case admissions[i] == (journal.Admission{}):
			in.prompt.await(op.ID, results)
		case !admissions[i].Known || admissions[i].Result != nil || !in.prompt.join(op.ID, results):
			continue
		}
		open[op.Item] = i
	}
	admissions = slices.Clone(admissions) // the caller reads the original concurrently
	in.replies.Go(func() {
		in.awaitResults(c, open, results, admissions)
		in.reply(c, admissions)
		in.acknowledge(c, admissions)
	})
}

// awaitResults stores the results in the admissions until all have arrived or
// [prompt.within] has passed.
func (in *intake) awaitResults(c *command, open map[int]int, results <-chan agentproto.Result, admissions []journal.Admission) {
	timeout := time.After(in.prompt.within)
	for len(open) > 0 {
		select {
		case r := <-results:
			admissions[open[r.Item]].Result = &r
			delete(open, r.Item)
		case <-timeout:
			maps.DeleteFunc(open, func(_, i int) bool { return in.prompt.miss(c.ops[i].ID) })
			// For the operations that remain in open, the results are in the channel.
		}
	}
}

// acknowledge acknowledges the results of a reply in the journal. If the reply is lost the
// worker retries, and a repeated status command changes nothing.
func (in *intake) acknowledge(c *command, admissions []journal.Admission) {
	var ids []journal.ID
	for i, op := range c.ops {
		if admissions[i].Result != nil && c.items[c.itemIndex[i]].Result != nil {
			ids = append(ids, op.ID)
		}
	}
	if err := in.ledger.Acknowledge(ids); err != nil {
		in.log.WithError(err).WithField("task", c.body.Task).Warn("acknowledgment not written to the journal")
	}
}

// observesOnly reports whether all operations are status operations and the sender
// waits for a reply.
func (c *command) observesOnly() bool {
	mutating := func(op journal.Op) bool { return op.Action != agentproto.ActionStatus }
	return c.msg.Reply != "" && !slices.ContainsFunc(c.ops, mutating)
}

// replyBytes is the maximum size of the results in one reply, well below the NATS message
// limit.
const replyBytes = 512 << 10

// reply replies to a command. Stored results that would make the reply too large are
// published instead.
func (in *intake) reply(c *command, admissions []journal.Admission) {
	size := 0
	for i, v := range admissions {
		reply := &c.items[c.itemIndex[i]]
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
	in.log.WithFields(logrus.Fields{"task": c.body.Task, "items": len(c.items)}).Debug("command answered with a reply")
	in.respond(c.msg, &agentproto.Reply{
		Header: newHeader(agentproto.TypeReply), Instance: in.instance, Incarnation: in.incarnation, Items: c.items,
	})
}

// resend publishes the results of finished items again. Its reply lists the finished,
// running and unknown items.
func (in *intake) resend(msg *nats.Msg) {
	var request agentproto.Resend
	reply := &agentproto.ResendReply{Header: newHeader(agentproto.TypeResendReply), Instance: in.instance, Incarnation: in.incarnation}
	err := agentproto.Decode(msg.Data, agentproto.TypeResend, &request)
	if err == nil {
		err = agentproto.ValidLane(request.Lane)
	}
	if err != nil {
		reply.Refused, reply.Message = agentproto.RefusedUndecodable, err.Error()
	} else {
		reply.Refused, reply.Message = in.misaddressed(request.Host, request.Instance)
	}
	if reply.Refused == "" {
		in.resendItems(&request, reply)
	}
	in.respond(msg, reply)
}

func (in *intake) resendItems(request *agentproto.Resend, reply *agentproto.ResendReply) {
	for _, item := range request.Items {
		id := journal.ID{Task: request.Task, Item: item}
		switch r, open, known := in.ledger.Result(id); {
		case !known, r.Reason == agentproto.ReasonCancelled: // only the reply to a cancel contains such a result
			reply.Unknown = append(reply.Unknown, item)
		case open:
			reply.Running = append(reply.Running, item)
		default:
			reply.Sent = append(reply.Sent, item)
			in.reporter.add(id, request.Lane, "")
		}
	}
}

// refuse replies to a message of any type, verified or not, that the whole message is refused.
func (in *intake) refuse(msg *nats.Msg, refused, why string) {
	in.log.WithFields(logrus.Fields{"refused": refused, "reason": why}).Debug("message refused")
	kind, _ := agentproto.PeekType(msg.Data) // "" if it has none
	switch kind {
	case agentproto.TypeResend:
		in.respond(msg, &agentproto.ResendReply{
			Header: newHeader(agentproto.TypeResendReply), Instance: in.instance, Incarnation: in.incarnation, Refused: refused, Message: why,
		})
	case agentproto.TypeCancel:
		in.respond(msg, &agentproto.CancelReply{
			Header: newHeader(agentproto.TypeCancelReply), Instance: in.instance, Incarnation: in.incarnation, Refused: refused, Message: why,
		})
	case agentproto.TypeOutput:
		in.respond(msg, &agentproto.OutputReply{
			Header: newHeader(agentproto.TypeOutputReply), Instance: in.instance, Incarnation: in.incarnation, Refused: refused, Message: why,
		})
	default:
		in.respond(msg, &agentproto.Reply{
			Header: newHeader(agentproto.TypeReply), Instance: in.instance, Incarnation: in.incarnation, Refused: refused, Message: why,
		})
	}
}

// respond sends a signed reply if the sender expects one. If the reply is lost the sender
// repeats its request.
func (in *intake) respond(msg *nats.Msg, reply agentproto.Message) {
	if msg.Reply == "" {
		return
	}
	_, id, _ := agentproto.Peek(msg.Data) // a message without an id gets a reply too
	data, err := agentproto.Encode(reply)
	if err == nil {
		err = msg.RespondMsg(in.signed("", reply.MessageType(), id, data))
	}
	if err != nil {
		in.log.WithError(err).Debug("reply not sent")
	}
}
