package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// authenticator signs the agent's messages and verifies the messages of servers. It is safe
// for concurrent use.
type authenticator struct {
	keys    func() *fleetkey.Host
	metrics *metrics
	log     logrus.FieldLogger

	mu     sync.Mutex
	logged time.Time // time of the last log line about a rejected message
}

// signed returns a signed message. For a reply, requestID is the id of the request;
// otherwise "".
func (b *authenticator) signed(subject, messageType, requestID string, body []byte) *nats.Msg {
	msg := nats.NewMsg(subject)
	msg.Data = body
	b.keys().Sign(msg.Header, &fleetkey.Message{Purpose: messageType, Answers: requestID, Body: body})
	return msg
}

// verify returns an error unless a server of this fleet signed the message. If requestID is
// not "", the message must be a reply to that request. It counts rejected messages and logs
// at most one per minute.
func (b *authenticator) verify(msg *nats.Msg, messageType, requestID string) error {
	err := b.keys().Verify(msg.Header, &fleetkey.Message{Purpose: messageType, Answers: requestID, Body: msg.Data})
	if err == nil {
		return nil
	}
	b.metrics.rejected(messageType, err)
	if b.dueToLog() {
		b.log.WithError(err).WithField("type", truncate(messageType)).Warn("message rejected: signature verification failed; re-enroll if repeated")
	}
	return err
}

func (b *authenticator) dueToLog() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if !b.logged.IsZero() && now.Sub(b.logged) < time.Minute {
		return false
	}
	b.logged = now
	return true
}

// truncate returns at most 64 bytes of a text from an unverified message.
func truncate(text string) string { return text[:min(len(text), 64)] }

// requestConn is the part of a [nats.Conn] that a requester uses.
type requestConn interface {
	RequestMsgWithContext(ctx context.Context, msg *nats.Msg) (*nats.Msg, error)
}

// requester sends signed requests, mostly to workers, and verifies the replies. It is safe
// for concurrent use.
type requester struct {
	identity

	sender requestConn
	clock  *clock // servers' time
}

// identity is the agent's identity in messages, with the keys that prove it.
type identity struct {
	*authenticator

	cloud       int64
	host        string // "<cloud area>:<ip>"
	agentID     string
	instance    string
	incarnation string // random for each run, so that copies of a data folder differ
}

// exchange holds the local times at which a request was sent and its reply received.
type exchange struct{ sent, received reading }

// request sends m with the trace of ctx and decodes the reply, which must be of type want,
// into reply. It returns an error unless a server of this fleet signed the reply to this
// request. It blocks for at most [agentproto.RequestTimeout].
func (r *requester) request(ctx context.Context, subject string, m agentproto.Message, want string, reply agentproto.Message) (took exchange, err error) {
	data, err := agentproto.Encode(m)
	if err != nil {
		r.log.WithError(err).Error("request not encoded")
		return took, err
	}
	msg := r.signed(subject, m.MessageType(), "", data)
	tracecontext.Inject(ctx, msg.Header)
	ctx, cancel := context.WithTimeout(ctx, agentproto.RequestTimeout)
	defer cancel()
	took.sent = r.clock.read()
	received, err := r.sender.RequestMsgWithContext(ctx, msg)
	took.received = r.clock.read()
	if err != nil {
		return took, fmt.Errorf("request to %s: %w", subject, err)
	}
	if err := r.verify(received, want, m.MessageID()); err != nil {
		return took, fmt.Errorf("verify the reply to %s: %w", subject, err)
	}
	if err := agentproto.Decode(received.Data, want, reply); err != nil {
		r.log.WithError(err).WithField("subject", subject).Warn("reply not decoded")
		return took, err
	}
	return took, nil
}

// Minimum and maximum pause after a request without a usable reply.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// backOff determines the time of the next request. Its methods are for the goroutine that
// sends the requests, except end, which is safe for concurrent use.
type backOff struct {
	failures  int           // number of consecutive failures
	until     time.Time     // end of the pause
	requested bool          // true if a worker requested the pause
	reachable chan struct{} // holds a token to end a pause after a failure
}

func newBackOff() *backOff { return &backOff{reachable: make(chan struct{}, 1)} }

// end ends a pause after a failure. Call it when the connection is back. A pause that a
// worker requested continues, because the worker is still busy.
func (b *backOff) end() { signal(b.reachable) }

// failed begins a pause that grows with each failure. Half of it is random, so that the
// agents of a fleet do not retry at the same time.
func (b *backOff) failed() {
	delay := min(firstRetry<<min(b.failures, 10), lastRetry)
	b.failures++
	b.until, b.requested = time.Now().Add(delay/2+rand.N(delay/2)), false
}

// busy begins a pause that a worker requested. Workers randomize these pauses.
func (b *backOff) busy(pause time.Duration) {
	b.until, b.requested = time.Now().Add(pause), true
}

// succeeded resets the failures and reports whether there were any.
func (b *backOff) succeeded() bool {
	again := b.failures > 0
	b.failures = 0
	return again
}

// wait blocks until the pause or ctx ends. It returns false if ctx has ended.
func (b *backOff) wait(ctx context.Context) bool {
	pause := time.Until(b.until)
	if pause <= 0 {
		return ctx.Err() == nil
	}
	if b.requested {
		return sleep(ctx, pause)
	}
	select {
	case <-ctx.Done():
	case <-b.reachable:
	case <-time.After(pause):
	}
	return ctx.Err() == nil
}

// sleep blocks for d or until ctx ends. It returns false if ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err() == nil
}
