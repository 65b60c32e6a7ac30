package simulate

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

const (
	// queued is the maximum number of received messages that wait in a link. NATS drops
	// further messages, and their senders repeat them.
	queued = 64 << 10
	// retryEvery is the pause after a failed connection, a failed send, or a status of no
	// responders.
	retryEvery = time.Second
	// receiptTimeout is the time after which results without a verified receipt are sent
	// again.
	receiptTimeout = 5 * time.Second
	// checkEvery is the interval of the check for results without a receipt.
	checkEvery = 100 * time.Millisecond
)

// traceHeader is the canonical name of the W3C trace context header.
const traceHeader = "Traceparent"

// link handles the messages of some agents and their connections. Only the goroutine of
// [link.run] accesses the mutable state.
type link struct {
	cfg      Config
	log      logrus.FieldLogger
	agents   map[string]*agent // agents by subject; read-only
	commands chan *nats.Msg
	receipts chan *nats.Msg

	memory *memory
	due    []outcome // results to be sent, earliest due time first
	// unstored holds the sent results without a receipt, by message number.
	unstored map[int64]*unstored
	trace    string // traceparent of the current command
	number   int64  // number of the last sent message
}

// outcome describes the results of a command and the time at which they are sent.
type outcome struct {
	command  *command
	agent    *agent
	trace    string // traceparent that is sent with the results
	accepted time.Time
	at       time.Time
	// interrupted states that the items failed, because their task was canceled.
	interrupted bool
}

// unstored is a sent outcome that waits for a receipt. Its command contains only the items
// that no receipt has confirmed yet.
type unstored struct {
	outcome
	again time.Time // time at which the results are sent again
}

func newLink(cfg Config) *link {
	return &link{
		cfg: cfg, log: cfg.Log.WithField("component", "simulate"),
		agents: make(map[string]*agent), memory: newMemory(), unstored: make(map[int64]*unstored),
		commands: make(chan *nats.Msg, queued), receipts: make(chan *nats.Msg, queued),
	}
}

// run replies to commands and sends results until ctx ends.
func (l *link) run(ctx context.Context) {
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	next := time.NewTimer(time.Hour)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-l.commands:
			l.handle(msg)
		case msg := <-l.receipts:
			l.received(msg, time.Now())
			continue
		case now := <-check.C:
			l.sendAgain(now)
		case <-next.C:
		}
		if l.sendDue(); len(l.due) > 0 {
			next.Reset(time.Until(l.due[0].at))
		}
	}
}

// handle replies to a command, a cancel or a resend request.
func (l *link) handle(msg *nats.Msg) {
	a := l.agents[msg.Subject]
	l.trace = msg.Header.Get(traceHeader)
	var r reply
	var err error
	switch kind := messageType(msg.Data); {
	case a.verify(msg, kind) != nil:
		r, err = l.refuse(a, "", agentproto.RefusedSignature, "refused by a simulated agent")
	case kind == agentproto.TypeCommand:
		r, err = l.accept(a, msg.Data)
	case kind == agentproto.TypeCancel:
		r, err = l.cancel(a, msg.Data)
	default:
		r, err = l.resend(a, msg.Data)
	}
	if err == nil {
		err = msg.RespondMsg(a.signed("", r.messageType, r.answers, r.data))
	}
	if err != nil {
		l.log.WithError(err).WithField("host", a.host).Warn("command not answered")
	}
}

// reply is the encoded reply to the message with the id answers.
type reply struct {
	messageType, answers string
	data                 []byte
}

// later queues results at the end of l.due. All results have the same latency, so l.due
// remains sorted.
func (l *link) later(o outcome) {
	o.trace = l.trace
	o.at = o.accepted.Add(l.cfg.Latency)
	l.due = append(l.due, o)
}

func (l *link) sendDue() {
	now := time.Now().UTC()
	done := 0
	for ; done < len(l.due) && !l.due[done].at.After(now); done++ {
		l.number++
		l.send(l.number, &unstored{outcome: l.due[done]}, now)
	}
	l.due = slices.Delete(l.due, 0, done)
}

// send sends results and requests a receipt. If workers have paused the agent, it only
// schedules the results for the end of the pause.
func (l *link) send(number int64, u *unstored, now time.Time) {
	u.again = now.Add(jittered(receiptTimeout))
	if resume := u.agent.resume[u.command.Lane]; resume.After(now) {
		u.again = resume
	} else if err := l.request(number, u, now); err != nil {
		u.again = now.Add(jittered(retryEvery))
	}
	l.unstored[number] = u
}

func (l *link) request(number int64, u *unstored, now time.Time) error {
	a := u.agent
	header := agentproto.Header{Type: agentproto.TypeResults, ID: messageID(number), Sent: now}
	msg := nats.Msg{
		Subject: agentproto.ResultSubject(u.command.Lane, l.cfg.Cloud), Reply: a.conn.inbox + strconv.FormatInt(number, 10),
		Data: appendResults(nil, header, &u.outcome),
	}
	if u.trace != "" {
		msg.Header = nats.Header{traceHeader: {u.trace}}
	}
	msg.Header = a.sign(msg.Header, agentproto.TypeResults, "", msg.Data)
	return a.conn.PublishMsg(&msg)
}

// received removes the results that a verified receipt confirms. It ignores an unverified
// receipt, so that the results are sent again.
func (l *link) received(msg *nats.Msg, now time.Time) {
	number, err := strconv.ParseInt(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:], 10, 64)
	if err != nil {
		return // not a receipt subject of this link
	}
	u, waits := l.unstored[number]
	if !waits {
		return
	}
	if len(msg.Data) == 0 && msg.Header.Get("Status") == noResponders {
		u.again = now.Add(jittered(retryEvery))
		return
	}
	var r agentproto.Receipt
	m := fleetkey.Message{Purpose: agentproto.TypeReceipt, Answers: messageID(number), Body: msg.Data}
	if u.agent.keys.current().Verify(msg.Header, &m) != nil || agentproto.Decode(msg.Data, agentproto.TypeReceipt, &r) != nil {
		return
	}
	if u.settle(&r, now); len(u.command.Items) == 0 {
		delete(l.unstored, number)
	}
}

// noResponders is the status with which NATS replies to a request without a subscriber.
const noResponders = "503"

// settle removes the items that the receipt confirms and schedules the other items to be
// sent again.
func (u *unstored) settle(r *agentproto.Receipt, now time.Time) {
	if r.Task == u.command.Task {
		u.command.Items = slices.DeleteFunc(u.command.Items, func(i commandItem) bool {
			return slices.Contains(r.Stored, i.Item) || slices.Contains(r.Rejected, i.Item)
		})
	}
	u.again = now.Add(jittered(retryEvery))
	if wait := r.RetryAfter(); wait > 0 {
		u.again = now.Add(wait)
		u.agent.wait(u.command.Lane, u.again)
	}
}

func (l *link) sendAgain(now time.Time) {
	for number, u := range l.unstored {
		if now.After(u.again) {
			l.send(number, u, now.UTC())
		}
	}
}

// jittered returns a random duration from d to 1.5 d, so that agents that fail at the same
// time do not retry at the same time.
func jittered(d time.Duration) time.Duration { return d + rand.N(d/2) }

func messageID(number int64) string { return "sim" + strconv.FormatInt(number, 36) }

func (l *link) header(typ string) agentproto.Header {
	l.number++
	return agentproto.Header{Type: typ, ID: messageID(l.number), Sent: time.Now().UTC()}
}
