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

// promptWithin is how long the answer to a command that only looks waits for
// what is seen. Workers ask again after seconds.
const promptWithin = 50 * time.Millisecond

// prompt has results travel in the answer to the command that asked for them,
// which spares a request. One that is not ready in time is sent to workers like
// any other. It is safe for concurrent use.
type prompt struct {
	within  time.Duration // how long a reply waits for results
	mu      sync.Mutex
	awaited map[journal.ID]*awaited
}

// awaited is a result that answers wait for.
type awaited struct {
	answers []chan<- agentproto.Result
	publish bool // an answer went without it
}

func newPrompt(within time.Duration) *prompt {
	return &prompt{within: within, awaited: map[journal.ID]*awaited{}}
}

// await has the result of a new operation sent to the channel, which must have
// room for it.
func (p *prompt) await(id journal.ID, answer chan<- agentproto.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaited[id] = &awaited{answers: []chan<- agentproto.Result{answer}}
}

// join is await for an operation that was asked for before. It reports false if
// no answer waits for it: its result is published.
func (p *prompt) join(id journal.ID, answer chan<- agentproto.Result) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.awaited[id]
	if a != nil {
		a.answers = append(a.answers, answer)
	}
	return a != nil
}

// miss has the result of an operation published, as an answer goes without it.
// It reports false if the result was sent after all.
func (p *prompt) miss(id journal.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.awaited[id]
	if a != nil {
		a.publish = true
	}
	return a != nil
}

// take sends a result to the answers that wait for it, and reports whether it
// needs no publishing.
func (p *prompt) take(id journal.ID, r *agentproto.Result) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.awaited[id]
	if a == nil {
		return false
	}
	delete(p.awaited, id)
	for _, answer := range a.answers {
		answer <- *r
	}
	return !a.publish
}

// answerPromptly is answer for a command that only looks: it waits a little,
// beside everything else, for what is seen. The operations that are new must
// not be submitted yet.
func (in *intake) answerPromptly(c *command, verdicts []journal.Verdict) {
	results := make(chan agentproto.Result, len(c.ops))
	open := map[int]int{} // places in verdicts by item
	for i, op := range c.ops {
		switch {
		case verdicts[i] == (journal.Verdict{}):
			in.prompt.await(op.ID, results)
		case !awaitable(&verdicts[i]) || !in.prompt.join(op.ID, results):
			continue
		}
		open[op.Item] = i
	}
	verdicts = slices.Clone(verdicts) // those of new operations are looked at once more
	in.answers.Go(func() {
		in.awaitResults(c, open, results, verdicts)
		in.answer(c, verdicts)
		in.told(c, verdicts)
	})
}

// awaitable says of a repeat that it is still open.
func awaitable(v *journal.Verdict) bool { return v.Known && v.Result == nil }

// awaitResults puts the results into the verdicts until none is open or the
// time is over.
func (in *intake) awaitResults(c *command, open map[int]int, results <-chan agentproto.Result, verdicts []journal.Verdict) {
	timeout := time.NewTimer(in.prompt.within)
	defer timeout.Stop()
	for len(open) > 0 {
		select {
		case r := <-results:
			verdicts[open[r.Item]].Result = &r
			delete(open, r.Item)
		case <-timeout.C:
			maps.DeleteFunc(open, func(_, i int) bool { return in.prompt.miss(c.ops[i].ID) })
			// Those that are left were sent.
		}
	}
}

// told has the journal forget what an answer told. Whoever does not get the
// answer asks again, and there is no harm in looking twice.
func (in *intake) told(c *command, verdicts []journal.Verdict) {
	var ids []journal.ID
	for i, op := range c.ops {
		if verdicts[i].Result != nil && c.items[c.at[i]].Result != nil {
			ids = append(ids, op.ID)
		}
	}
	if err := in.ledger.Acknowledge(ids); err != nil {
		in.log.WithError(err).WithField("task", c.body.Task).Warn("acknowledgment not written to the journal")
	}
}

// onlyLooks reports whether a command changes nothing on the host, and somebody
// waits for what is seen.
func (c *command) onlyLooks() bool {
	mutating := func(op journal.Op) bool { return op.Action != agentproto.ActionStatus }
	return c.msg.Reply != "" && !slices.ContainsFunc(c.ops, mutating)
}

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
