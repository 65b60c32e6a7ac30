package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// intake replies with receipts to the requests of one inbox: to what keep has
// stored, and otherwise with the time after which agents send again. While keep
// cannot store, nothing waits here: each request is answered at once, but for one
// batch in a while that tries again.
type intake struct {
	name     string // of the inbox
	conn     *nats.Conn
	believer *believer
	clock    *clock
	metrics  *metrics
	gate     gate
	log      logrus.FieldLogger

	// open decodes and verifies a message. One that is not valid is counted and
	// logged, gets no reply, and is nil.
	open func(msg *nats.Msg) *request
	// keep stores requests and replies to them. An error says that it cannot
	// store now; left are the requests without a reply.
	keep func(ctx context.Context, requests []*request) (left []*request, err error)
}

// request is a verified message of an agent.
type request struct {
	msg     *nats.Msg
	kind    string // of the message
	id      string
	host    procfleet.Host // of the agent
	receipt bool           // expected; otherwise the agent is of the release before

	// Of results.
	task    procfleet.TaskID
	results []procfleet.Result
	foreign []int // items of other hosts, or of no known task
	refused bool  // the store refused the results
}

// take works on a batch of messages.
func (in *intake) take(ctx context.Context, msgs []*nats.Msg) {
	requests := in.openAll(msgs)
	if len(requests) == 0 {
		return
	}
	if !in.gate.enter() {
		in.busy(requests, busyUnavailable)
		return
	}
	left, err := in.keep(ctx, requests)
	in.gate.leave(err)
	in.busy(left, busyUnavailable)
}

// overflow replies to a message that is not queued.
func (in *intake) overflow(msg *nats.Msg) {
	cause := busyFull
	if in.gate.refuses() {
		cause = busyUnavailable
	}
	in.busy(in.openAll([]*nats.Msg{msg}), cause)
}

func (in *intake) openAll(msgs []*nats.Msg) []*request {
	requests := make([]*request, 0, len(msgs))
	for _, msg := range msgs {
		if r := in.open(msg); r != nil {
			requests = append(requests, r)
		}
	}
	return requests
}

// busy has agents send their requests again later.
func (in *intake) busy(requests []*request, cause string) {
	in.metrics.busy(in.name, cause, len(requests))
	for _, r := range requests {
		in.reply(r, &agentproto.Receipt{RetryAfterMS: in.gate.retryAfter().Milliseconds()})
	}
}

// reply sends a receipt, without which the agent sends its request again.
func (in *intake) reply(r *request, receipt *agentproto.Receipt) {
	if !agentproto.ToAgent(r.msg.Reply) {
		return
	}
	msg, err := in.receiptOf(r, receipt)
	if err == nil && msg != nil {
		err = in.conn.PublishMsg(msg)
	}
	if err != nil {
		in.log.WithError(err).WithField("host", r.host.String()).Warn("receipt not sent, agent will resend")
	}
}

// receiptOf returns the reply to a request, nil if the agent gets none.
func (in *intake) receiptOf(r *request, receipt *agentproto.Receipt) (*nats.Msg, error) {
	if !r.receipt {
		return olderReceipt(r, receipt), nil
	}
	receipt.Header = agentproto.Header{Type: agentproto.TypeReceipt, ID: r.msg.Reply, Sent: in.clock.now().UTC()}
	data, err := agentproto.Encode(receipt)
	if err != nil {
		return nil, err
	}
	message := fleetkey.Message{Purpose: agentproto.TypeReceipt, Answers: r.id, Body: data}
	return &nats.Msg{Subject: r.msg.Reply, Data: data, Header: in.believer.signed(nil, r.host, &message)}, nil
}

// guarded makes a panic of step an error: one message must not end the worker.
func guarded(step func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return step()
}

// Agents that were put off return within half of a time to one and a half of
// it: 10,000 agents come as a ramp and not at once. It grows to the most while
// the store stays unavailable.
const (
	retryLeast = 2 * time.Second
	retryMost  = 20 * time.Second
	// retryRefused is for a message that the store refuses.
	retryRefused = agentproto.MaxRetryAfter
)

// gate closes when a batch could not be stored, and then admits one batch per
// pause, until one is stored. The zero gate needs least and most set. It is safe
// for concurrent use.
type gate struct {
	least, most time.Duration // of the pause

	mu      sync.Mutex
	pause   time.Duration
	since   time.Time // when it closed; zero while it is open
	next    time.Time // when the next batch is admitted
	probing bool      // a batch was admitted while it is closed
}

// enter reports whether a batch may be stored; [gate.leave] must follow.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.since.IsZero() {
		return true
	}
	if g.probing || time.Now().Before(g.next) {
		return false
	}
	g.probing = true
	return true
}

// refuses reports whether no batch would be admitted now.
func (g *gate) refuses() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.since.IsZero() && (g.probing || time.Now().Before(g.next))
}

// leave opens the gate after a batch that was stored, and closes it after one
// that could not be.
func (g *gate) leave(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.probing = false
	if err == nil {
		g.since, g.pause = time.Time{}, 0
		return
	}
	now := time.Now()
	if g.since.IsZero() {
		g.since = now
	}
	g.pause = min(max(2*g.pause, g.least), g.most)
	g.next = now.Add(jitter(g.pause))
}

// retryAfter returns a random time after which an agent may send again.
func (g *gate) retryAfter() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	about := retryLeast
	if !g.since.IsZero() {
		about = min(max(time.Since(g.since), retryLeast), retryMost)
	}
	return about/2 + rand.N(about)
}
