package simulate

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
)

const (
	// queued is how many messages of a link may wait; NATS drops what is
	// beyond, and the other side repeats it.
	queued = 64 << 10
	// retryEvery is how soon a result is sent again that JetStream refused,
	// ackTimeout when one whose fate is unknown is.
	retryEvery = time.Second
	ackTimeout = 5 * time.Second
)

// traceHeader is the W3C trace context as Go writes its name.
const traceHeader = "Traceparent"

// link is a share of the agents and of the connections. Its run owns
// everything that changes.
type link struct {
	cfg      Config
	log      logrus.FieldLogger
	agents   map[string]*agent // by subject; read-only
	commands chan *nats.Msg
	acks     chan *nats.Msg

	memory  *memory
	due     []outcome // results that wait for their time, the earliest first
	unacked map[int64]published
	trace   string // traceparent of the command at hand
	number  int64  // of the last message
}

// outcome is a result that is to be published at its time.
type outcome struct {
	command  *command
	agent    *agent
	trace    string // goes back with the result
	accepted time.Time
	at       time.Time
}

// published is a result that JetStream has not acknowledged.
type published struct {
	agent   *agent
	subject string
	trace   string
	data    []byte
	again   time.Time // when to send it again
}

func newLink(cfg Config) *link {
	return &link{
		cfg: cfg, log: cfg.Log.WithField("component", "simulate"),
		agents: make(map[string]*agent), memory: newMemory(), unacked: make(map[int64]published),
		commands: make(chan *nats.Msg, queued), acks: make(chan *nats.Msg, queued),
	}
}

// run answers commands and publishes results until ctx ends.
func (l *link) run(ctx context.Context) {
	retry := time.NewTicker(retryEvery)
	defer retry.Stop()
	next := time.NewTimer(time.Hour)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-l.commands:
			l.take(msg)
		case msg := <-l.acks:
			l.acknowledged(msg)
			continue
		case now := <-retry.C:
			l.publishAgain(now)
		case <-next.C:
		}
		if l.publishDue(); len(l.due) > 0 {
			next.Reset(time.Until(l.due[0].at))
		}
	}
}

// take answers one command or request to send again.
func (l *link) take(msg *nats.Msg) {
	a := l.agents[msg.Subject]
	l.trace = msg.Header.Get(traceHeader)
	var r reply
	var err error
	switch command := isCommand(msg.Data); {
	case a.believe(msg, command) != nil:
		r, err = l.refuse(a, "", agentproto.RefusedSignature, "refused by a simulated agent")
	case command:
		r, err = l.accept(a, msg.Data)
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

// reply answers the message with the given id.
type reply struct {
	messageType, answers string
	data                 []byte
}

// later queues a result; the latency is the same for all, so the queue stays
// in order of time.
func (l *link) later(o outcome) {
	o.trace = l.trace
	o.at = o.accepted.Add(l.cfg.Latency)
	l.due = append(l.due, o)
}

func (l *link) publishDue() {
	now := time.Now().UTC()
	done := 0
	for ; done < len(l.due) && !l.due[done].at.After(now); done++ {
		o := &l.due[done]
		data := appendResults(nil, l.header(agentproto.TypeResults), o, now)
		l.publish(l.number, published{agent: o.agent, subject: agentproto.ResultSubject(o.command.Lane, l.cfg.Cloud), trace: o.trace, data: data})
	}
	l.due = slices.Delete(l.due, 0, done)
}

// publish sends a result and remembers it until it is acknowledged.
func (l *link) publish(number int64, p published) {
	p.again = time.Now().Add(ackTimeout)
	msg := nats.Msg{Subject: p.subject, Reply: p.agent.conn.inbox + strconv.FormatInt(number, 10), Data: p.data}
	if p.trace != "" {
		msg.Header = nats.Header{traceHeader: {p.trace}}
	}
	msg.Header = p.agent.sign(msg.Header, agentproto.TypeResults, "", p.data)
	if err := p.agent.conn.PublishMsg(&msg); err != nil {
		p.again = time.Now().Add(retryEvery)
	}
	l.unacked[number] = p
}

// acknowledged forgets a result that the stream has. Any other answer (the
// stream is full, or there is none) means that it must be sent again.
func (l *link) acknowledged(msg *nats.Msg) {
	number, err := strconv.ParseInt(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:], 10, 64)
	if err != nil {
		return // not one of ours
	}
	if len(msg.Data) > 0 && !bytes.Contains(msg.Data, []byte(`"error"`)) {
		delete(l.unacked, number)
		return
	}
	if p, waits := l.unacked[number]; waits {
		p.again = time.Now().Add(retryEvery)
		l.unacked[number] = p
	}
}

func (l *link) publishAgain(now time.Time) {
	for number, p := range l.unacked {
		if now.After(p.again) {
			l.publish(number, p)
		}
	}
}

func (l *link) header(typ string) agentproto.Header {
	l.number++
	return agentproto.Header{Type: typ, ID: "sim" + strconv.FormatInt(l.number, 36), Sent: time.Now().UTC()}
}
