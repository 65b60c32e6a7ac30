package agentlink

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/storecall"
)

// Intake replies with receipts to the requests of one inbox: that they are stored,
// or the time after which agents send them again. While Keep cannot store, nothing
// waits here: every request is answered at once, and one batch per pause retries.
type Intake struct {
	Name string // of the inbox
	Link *Link
	Log  logrus.FieldLogger

	// Open decodes and verifies a message. It counts and logs an invalid one, for
	// which it returns nil, and which gets no reply.
	Open func(msg *nats.Msg) *Request
	// Keep stores requests and replies to them. An error says that it cannot
	// store now; left are the requests without a reply.
	Keep func(ctx context.Context, requests []*Request) (left []*Request, err error)

	breaker breaker
}

// Request is a verified message of an agent.
type Request struct {
	Msg     *nats.Msg
	Kind    string // of the message
	ID      string
	Host    procfleet.Host // of the agent
	Receipt bool           // expected; otherwise the agent is of the release before

	// Of results.
	Task    procfleet.TaskID
	Results []procfleet.Result
	Foreign []int // items of other hosts, or of an unknown task
	Refused bool  // the store refused the results
}

// Take handles a batch of messages.
func (in *Intake) Take(ctx context.Context, msgs []*nats.Msg) {
	requests := in.OpenAll(msgs)
	if len(requests) == 0 {
		return
	}
	if !in.breaker.allow() {
		in.busy(requests, metrics.BusyUnavailable)
		return
	}
	left, err := in.Keep(ctx, requests)
	in.breaker.report(err, in.Link.Calls)
	in.busy(left, metrics.BusyUnavailable)
}

// Overflow replies to a message that is not queued.
func (in *Intake) Overflow(msg *nats.Msg) {
	cause := metrics.BusyFull
	if in.breaker.refuses() {
		cause = metrics.BusyUnavailable
	}
	in.busy(in.OpenAll([]*nats.Msg{msg}), cause)
}

// Refuses reports whether no batch would be stored now.
func (in *Intake) Refuses() bool { return in.breaker.refuses() }

// OpenAll opens messages and leaves out the invalid ones.
func (in *Intake) OpenAll(msgs []*nats.Msg) []*Request {
	requests := make([]*Request, 0, len(msgs))
	for _, msg := range msgs {
		if r := in.Open(msg); r != nil {
			requests = append(requests, r)
		}
	}
	return requests
}

// busy has agents send their requests again later.
func (in *Intake) busy(requests []*Request, cause string) {
	in.Link.Metrics.Busy(in.Name, cause, len(requests))
	for _, r := range requests {
		in.Reply(r, &agentproto.Receipt{RetryAfterMS: in.breaker.retryAfter().Milliseconds()})
	}
}

// Reply sends a receipt, without which the agent sends its request again.
func (in *Intake) Reply(r *Request, receipt *agentproto.Receipt) {
	if !agentproto.ToAgent(r.Msg.Reply) {
		return
	}
	var err error
	if r.Receipt {
		err = in.sendReceipt(r, receipt)
	} else if receipt.RetryAfterMS == 0 {
		err = in.sendPubAck(r)
	}
	if err != nil {
		in.Log.WithError(err).WithField("host", r.Host.String()).Warn("receipt not sent, agent will resend")
	}
}

func (in *Intake) sendReceipt(r *Request, receipt *agentproto.Receipt) error {
	receipt.Header = agentproto.Header{Type: agentproto.TypeReceipt, ID: r.Msg.Reply, Sent: in.Link.Clock.Now().UTC()}
	data, err := agentproto.Encode(receipt)
	if err != nil {
		return err
	}
	return in.Link.Reply(r.Msg.Reply, r.Host, &fleetkey.Message{Purpose: agentproto.TypeReceipt, Answers: r.ID, Body: data})
}

// sendPubAck sends the acknowledgement of a stream: agents of the release before
// published to streams, and publish again what is not acknowledged. It is removed
// with the next release, as internal/bus/oldresults.go is.
func (in *Intake) sendPubAck(r *Request) error {
	data, err := json.Marshal(jetstream.PubAck{Stream: bus.OldStreamOf(r.Kind), Sequence: 1})
	if err != nil {
		return err
	}
	return in.Link.Conn.Publish(r.Msg.Reply, data)
}

// Guarded turns a panic of step into an error: one message must not end the worker.
func Guarded(step func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return step()
}

// An agent sends a busy request again within half to one and a half of a time:
// 10,000 agents return as a ramp and not at once. The time grows to the most while
// the store stays unavailable.
const (
	retryLeast = 2 * time.Second
	retryMost  = 20 * time.Second
	// RetryRefused is for a message that the store refuses.
	RetryRefused = agentproto.MaxRetryAfter
)

// breaker opens when a batch could not be stored, and then allows one batch per
// pause, until one is stored. The zero breaker is closed. It is safe for concurrent
// use.
type breaker struct {
	mu      sync.Mutex
	pause   time.Duration
	since   time.Time // when it opened; zero while it is closed
	next    time.Time // when the next batch is allowed
	probing bool      // a batch was allowed while it is open
}

// allow reports whether a batch may be stored; [breaker.report] must follow.
func (b *breaker) allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refusesNow() {
		return false
	}
	b.probing = !b.since.IsZero()
	return true
}

// refuses reports whether no batch would be allowed now.
func (b *breaker) refuses() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refusesNow()
}

func (b *breaker) refusesNow() bool {
	return !b.since.IsZero() && (b.probing || time.Now().Before(b.next))
}

// report closes the breaker after a batch that was stored, and opens it after one
// that could not be. The policy bounds the pause.
func (b *breaker) report(err error, policy storecall.Policy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if err == nil {
		b.since, b.pause = time.Time{}, 0
		return
	}
	now := time.Now()
	if b.since.IsZero() {
		b.since = now
	}
	b.pause = min(max(2*b.pause, policy.RetryMin), policy.RetryMax)
	b.next = now.Add(storecall.Jitter(b.pause))
}

// retryAfter returns a random time after which an agent may send again.
func (b *breaker) retryAfter() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	about := retryLeast
	if !b.since.IsZero() {
		about = min(max(time.Since(b.since), retryLeast), retryMost)
	}
	return about/2 + rand.N(about)
}
