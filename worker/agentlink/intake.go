package agentlink

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
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/storecall"
)

// Intake replies with receipts to the requests of one inbox. A receipt confirms that a
// request is stored, or gives the time after which the agent resends it. While Store
// fails, nothing is queued: every request gets a busy receipt at once, except for one
// batch per pause that retries Store.
type Intake struct {
	Name string // name of the inbox
	Link *Link
	Log  logrus.FieldLogger

	// Open decodes and verifies a message. It counts and logs an invalid message and
	// returns nil; such a message gets no reply.
	Open func(msg *nats.Msg) *Request
	// Store stores requests and replies to them. An error means that storing is
	// unavailable; left are the requests without a reply.
	Store func(ctx context.Context, requests []*Request) (left []*Request, err error)

	breaker breaker
}

// Request is a verified message of an agent.
type Request struct {
	Msg  *nats.Msg
	ID   string
	Host procfleet.Host // host of the agent

	// The following fields are set for results only.
	Task    procfleet.TaskID
	Results []procfleet.Result
	Foreign []int // items of other hosts, or of an unknown task
	Refused bool  // the store rejected the results
}

// Take verifies and stores a batch of messages.
func (in *Intake) Take(ctx context.Context, msgs []*nats.Msg) {
	requests := in.OpenAll(msgs)
	if len(requests) == 0 {
		return
	}
	if !in.breaker.allow() {
		in.busy(requests, metrics.BusyUnavailable)
		return
	}
	left, err := in.Store(ctx, requests)
	in.breaker.report(err, in.Link.Calls)
	in.busy(left, metrics.BusyUnavailable)
}

// Overflow sends a busy receipt for a message that is not queued.
func (in *Intake) Overflow(msg *nats.Msg) {
	cause := metrics.BusyFull
	if in.breaker.refuses() {
		cause = metrics.BusyUnavailable
	}
	in.busy(in.OpenAll([]*nats.Msg{msg}), cause)
}

// Refuses reports whether batches are currently rejected without an attempt to store.
func (in *Intake) Refuses() bool { return in.breaker.refuses() }

// OpenAll opens messages and omits the invalid ones.
func (in *Intake) OpenAll(msgs []*nats.Msg) []*Request {
	requests := make([]*Request, 0, len(msgs))
	for _, msg := range msgs {
		if r := in.Open(msg); r != nil {
			requests = append(requests, r)
		}
	}
	return requests
}

func (in *Intake) busy(requests []*Request, cause string) {
	in.Link.Metrics.Busy(in.Name, cause, len(requests))
	for _, r := range requests {
		in.Reply(r, &agentproto.Receipt{RetryAfterMS: in.breaker.retryAfter().Milliseconds()})
	}
}

// Reply sends a receipt. If it is lost, the agent resends its request.
func (in *Intake) Reply(r *Request, receipt *agentproto.Receipt) {
	if !agentproto.ToAgent(r.Msg.Reply) {
		return
	}
	if err := in.sendReceipt(r, receipt); err != nil {
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

// Guarded converts a panic of step to an error: one message must not end the worker.
func Guarded(step func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return step()
}

// An agent resends a rejected request after 50 to 150 % of a base delay, so that agents
// return gradually. The base delay grows from retryLeast to retryMost during an outage.
const (
	retryLeast = 2 * time.Second
	retryMost  = 20 * time.Second
	// RetryRefused is the delay for a message that the store rejects.
	RetryRefused = agentproto.MaxRetryAfter
)

// breaker opens when a batch cannot be stored. While open, it allows one batch per
// pause, and closes when a batch is stored. It is safe for concurrent use.
type breaker struct {
	mu      sync.Mutex
	pause   time.Duration
	since   time.Time // when the breaker opened; zero while closed
	next    time.Time // when the next batch is allowed
	probing bool      // a batch allowed by the open breaker is in progress
}

// allow reports whether to store a batch; if so, [breaker.report] must follow.
func (b *breaker) allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refusesNow() {
		return false
	}
	b.probing = !b.since.IsZero()
	return true
}

func (b *breaker) refuses() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refusesNow()
}

func (b *breaker) refusesNow() bool {
	return !b.since.IsZero() && (b.probing || time.Now().Before(b.next))
}

// report closes the breaker if err is nil, else opens it for a pause within policy.
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

// retryAfter returns a random delay before an agent resends.
func (b *breaker) retryAfter() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	about := retryLeast
	if !b.since.IsZero() {
		about = min(max(time.Since(b.since), retryLeast), retryMost)
	}
	return about/2 + rand.N(about)
}
