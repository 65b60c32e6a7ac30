package simulate

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/natsconn"
)

const (
	// commandQueue is how many commands of a link may wait; NATS drops what
	// is beyond, and the worker asks again.
	commandQueue = 64 << 10
	// retryEvery is how soon a result is sent again that was not acknowledged.
	retryEvery = time.Second
)

// link is one connection and the agents that share it. Its run owns memory
// and due; only unsent is shared with the connection's callbacks.
type link struct {
	cfg      Config
	conn     *nats.Conn
	log      logrus.FieldLogger
	agents   map[string]*agent // by subject; read-only once subscribed
	commands chan *nats.Msg
	memory   *memory
	due      []outcome // results that wait for their time, the earliest first
	sent     int64     // messages, for their ids

	mu     sync.Mutex
	unsent []*nats.Msg // results that JetStream did not acknowledge
}

// outcome is a result that is to be published at its time.
type outcome struct {
	command  *command
	agent    *agent
	accepted time.Time
	at       time.Time
}

func newLink(cfg Config, conn *nats.Conn) *link {
	return &link{
		cfg: cfg, conn: conn, log: cfg.Log.WithField("component", "simulate"),
		agents: make(map[string]*agent), commands: make(chan *nats.Msg, commandQueue), memory: newMemory(),
	}
}

// listening returns once the server knows every subscription of the link.
func (l *link) listening(ctx context.Context) error {
	for {
		err := l.conn.FlushTimeout(5 * time.Second)
		if err == nil {
			return nil
		}
		l.log.WithError(err).Warn("waiting for NATS")
		select {
		case <-ctx.Done():
			return fmt.Errorf("connect to NATS at %q: %w", l.cfg.URL, err)
		case <-time.After(retryEvery):
		}
	}
}

// run answers commands and publishes results until ctx ends.
func (l *link) run(ctx context.Context) {
	publisher, err := jetstream.New(l.conn, jetstream.WithPublishAsyncMaxPending(commandQueue),
		jetstream.WithPublishAsyncTimeout(natsconn.AckTimeout), jetstream.WithPublishAsyncErrHandler(l.notAcknowledged))
	if err != nil {
		l.log.WithError(err).Error("no JetStream")
		return
	}
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
		case <-next.C:
		case <-retry.C:
			l.publishAgain(publisher)
		}
		for len(l.due) > 0 && !l.due[0].at.After(time.Now()) {
			l.publish(publisher, l.due[0])
			l.due = l.due[1:]
		}
		if len(l.due) > 0 {
			next.Reset(time.Until(l.due[0].at))
		}
	}
}

// take answers one command or request to send again.
func (l *link) take(msg *nats.Msg) {
	var reply []byte
	var err error
	a := l.agents[msg.Subject]
	if isCommand(msg.Data) {
		reply, err = l.accept(a, msg.Data)
	} else {
		reply, err = l.resend(a, msg.Data)
	}
	if err == nil {
		err = msg.Respond(reply)
	}
	if err != nil {
		l.log.WithError(err).WithField("host", a.host).Warn("command not answered")
	}
}

// later queues a result; the latency is the same for all, so the queue stays
// in order of time.
func (l *link) later(o outcome) {
	o.at = o.accepted.Add(l.cfg.Latency)
	l.due = append(l.due, o)
}

func (l *link) publish(js jetstream.JetStream, o outcome) {
	data, err := l.results(o)
	if err != nil {
		l.log.WithError(err).Error("result not encoded")
		return
	}
	l.send(js, &nats.Msg{Subject: agentproto.ResultSubject(o.command.Lane, l.cfg.Cloud), Data: data})
}

func (l *link) send(js jetstream.JetStream, msg *nats.Msg) {
	if _, err := js.PublishMsgAsync(msg); err != nil {
		l.keep(msg)
	}
}

func (l *link) notAcknowledged(_ jetstream.JetStream, msg *nats.Msg, _ error) { l.keep(msg) }

// keep puts a result aside until the next retry.
func (l *link) keep(msg *nats.Msg) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsent = append(l.unsent, &nats.Msg{Subject: msg.Subject, Data: msg.Data})
}

func (l *link) publishAgain(js jetstream.JetStream) {
	l.mu.Lock()
	again := l.unsent
	l.unsent = nil
	l.mu.Unlock()
	for _, msg := range again {
		l.send(js, msg)
	}
}

func (l *link) header(typ string) agentproto.Header {
	l.sent++
	return agentproto.Header{Type: typ, ID: "sim" + strconv.FormatInt(l.sent, 36), Sent: time.Now().UTC()}
}
