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
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/storecall"
)

// Link holds the dependencies that the parts of a worker share.
type Link struct {
	Conn      *nats.Conn
	Bus       *bus.Bus
	Requester *Requester
	Auth      *Authenticator
	Clock     *storecall.Clock
	Calls     storecall.Policy // of calls to the store
	Metrics   *metrics.Metrics
	// Tracer creates the spans of this worker, AgentTracer the spans of operations that
	// agents report; nil creates none.
	Tracer, AgentTracer trace.Tracer
	Reached             func(point string) // called at named points; tests kill the process there
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
	Keys    func() *fleetkey.Ring // returns the fleet's current keys, or nil
	Metrics *metrics.Metrics
	Log     logrus.FieldLogger

	logged firsts // hosts with a log line
}

// maxLoggedHosts bounds the hosts with a log line per minute.
const maxLoggedHosts = 1000

// Sign returns a copy of header with the signatures of a message to the agent of a
// host. Without keys it returns header itself.
func (a *Authenticator) Sign(header nats.Header, host procfleet.Host, m *fleetkey.Message) nats.Header {
	ring := a.Keys()
	if ring == nil {
		return header
	}
	with := make(nats.Header, len(header)+1)
	maps.Copy(with, header)
	ring.Sign(with, host.String(), m)
	return with
}

// HasKeys reports whether messages are signed and verified.
func (a *Authenticator) HasKeys() bool { return a.Keys() != nil }

// Verify returns an error unless the message's signature proves that the agent of the
// host sent it. It counts each failure, and logs one per minute and host.
func (a *Authenticator) Verify(header nats.Header, host procfleet.Host, m *fleetkey.Message) error {
	ring := a.Keys()
	if ring == nil {
		return nil
	}
	err := ring.Verify(header, host.String(), m)
	if err == nil {
		return nil
	}
	a.Metrics.Rejected(m.Purpose, err)
	if a.logged.add(host.String(), time.Minute, maxLoggedHosts) {
		a.Log.WithError(err).WithFields(logrus.Fields{"host": host.String(), "type": m.Purpose, "remedy": Remedy(err)}).Warn("message rejected: signature verification failed")
	}
	return err
}

// firsts records the keys of the current period, so that each key is reported once per
// period. It is safe for concurrent use.
type firsts struct {
	mu    sync.Mutex
	begun time.Time // start of the period
	keys  map[string]bool
}

// add reports whether a key is new in the current period, which has at most limit keys.
func (f *firsts) add(key string, period time.Duration, limit int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.begun) >= period {
		f.begun, f.keys = now, make(map[string]bool)
	}
	if f.keys[key] || len(f.keys) >= limit {
		return false
	}
	f.keys[key] = true
	return true
}

// VerifiedAgentID returns id if the identity that signed a verified message of a host
// has this agent id, else "".
func (a *Authenticator) VerifiedAgentID(header nats.Header, host procfleet.Host, id string) string {
	if a.Keys().VerifyAgentID(header, host.String(), id) != nil {
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
