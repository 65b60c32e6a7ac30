// Package agentlink exchanges messages with agents for the parts of a worker:
// signed requests whose replies are routed back ([Requester]), inboxes of
// messages that agents send ([Inbox]), receipts for them ([Intake]), and the
// translation between the wire format and the model.
package agentlink

import (
	"context"
	"errors"
	"maps"
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

// Link holds the shared dependencies of all exchanges with agents.
type Link struct {
	Conn    *nats.Conn
	Auth    *Authenticator
	Clock   *storecall.Clock
	Metrics *metrics.Metrics
	Calls   storecall.Policy
}

// Reply publishes a signed reply to the agent of a host.
func (l *Link) Reply(subject string, host procfleet.Host, m *fleetkey.Message) error {
	return l.Conn.PublishMsg(&nats.Msg{Subject: subject, Data: m.Body, Header: l.Auth.Sign(nil, host, m)})
}

// ReceiptTimeout returns a context for storing what agents sent. It ends before the
// agents' request timeout: agents must get a busy receipt while the store hangs, or
// they would all resend everything at the same time.
func (l *Link) ReceiptTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return storecall.Policy{Timeout: min(l.Calls.Timeout, agentproto.RequestTimeout-time.Second)}.WithTimeout(ctx)
}

// Authenticator signs messages to agents and verifies messages from agents. Without
// keys it signs nothing and accepts every message. It is safe for concurrent use.
type Authenticator struct {
	keys    func() *fleetkey.Ring
	metrics *metrics.Metrics
	log     logrus.FieldLogger

	mu     sync.Mutex
	minute time.Time               // start of the minute of logged
	logged map[procfleet.Host]bool // hosts with a log line in that minute
}

// maxLoggedHosts bounds the hosts with a log line per minute.
const maxLoggedHosts = 1000

// NewAuthenticator returns an authenticator. keys returns the fleet's current keys or
// nil.
func NewAuthenticator(keys func() *fleetkey.Ring, m *metrics.Metrics, log logrus.FieldLogger) *Authenticator {
	return &Authenticator{keys: keys, metrics: m, log: log}
}

// Sign returns a copy of header with the signatures of a message to the agent of a
// host. Without keys it returns header itself.
func (a *Authenticator) Sign(header nats.Header, host procfleet.Host, m *fleetkey.Message) nats.Header {
	ring := a.keys()
	if ring == nil {
		return header
	}
	with := make(nats.Header, len(header)+1)
	maps.Copy(with, header)
	ring.Sign(with, host.String(), m)
	return with
}

// HasKeys reports whether messages are signed and verified.
func (a *Authenticator) HasKeys() bool { return a.keys() != nil }

// Verify returns an error unless the message's signature proves that the agent of the
// host sent it. It counts each failure, and logs one per minute and host.
func (a *Authenticator) Verify(header nats.Header, host procfleet.Host, m *fleetkey.Message) error {
	ring := a.keys()
	if ring == nil {
		return nil
	}
	err := ring.Verify(header, host.String(), m)
	if err == nil {
		return nil
	}
	a.metrics.Rejected(m.Purpose, err)
	if a.firstInMinute(host) {
		a.log.WithError(err).WithFields(logrus.Fields{"host": host.String(), "type": m.Purpose, "remedy": Remedy(err)}).Warn("message rejected: signature verification failed")
	}
	return err
}

func (a *Authenticator) firstInMinute(host procfleet.Host) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := time.Now(); now.Sub(a.minute) >= time.Minute {
		a.minute, a.logged = now, make(map[procfleet.Host]bool)
	}
	if a.logged[host] || len(a.logged) >= maxLoggedHosts {
		return false
	}
	a.logged[host] = true
	return true
}

// VerifiedAgentID returns id if the identity that signed a verified message of a host
// has this agent id, else "".
func (a *Authenticator) VerifiedAgentID(header nats.Header, host procfleet.Host, id string) string {
	if a.keys().VerifyAgentID(header, host.String(), id) != nil {
		return ""
	}
	return id
}

// RemoveUnverifiedAgentIDs removes agent ids that are not part of the host's identity
// from the statuses in results: callers match results to hosts by agent id.
func (a *Authenticator) RemoveUnverifiedAgentIDs(header nats.Header, host procfleet.Host, results []procfleet.Result) {
	for i := range results {
		if s := results[i].Status; s != nil && s.AgentID != "" {
			s.AgentID = a.VerifiedAgentID(header, host, s.AgentID)
		}
	}
}

// Remedy returns what an operator should do about a host whose signatures are rejected.
func Remedy(err error) string {
	switch {
	case errors.Is(err, fleetkey.ErrUnsigned):
		return "the agent has no keys: enroll the host and start the agent with --identity"
	case errors.Is(err, fleetkey.ErrUnknownKey):
		return "the keys of the host are not of this fleet, or were revoked: re-enroll the host"
	}
	return "another NATS client may impersonate the host or alter its messages: check who can publish, and re-enroll the host if its identity was stolen"
}
