package agent

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// requestConn is the part of a [nats.Conn] that a requester uses.
type requestConn interface {
	RequestMsgWithContext(ctx context.Context, msg *nats.Msg) (*nats.Msg, error)
}

// requester sends signed requests, to workers above all, and verifies the
// replies. It is safe for concurrent use.
type requester struct {
	*authenticator

	conn  requestConn
	clock *clock
}

// exchange is when a request was sent and its reply was received.
type exchange struct{ sent, answered reading }

// request sends m with the trace of ctx and decodes the reply, a message of the
// type want, into reply. It returns an error unless a server of this fleet
// signed the reply for this very request.
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
	answer, err := r.conn.RequestMsgWithContext(ctx, msg)
	took.answered = r.clock.read()
	if err != nil {
		return took, fmt.Errorf("request to %s: %w", subject, err)
	}
	if err := r.verify(answer, want, m.MessageID()); err != nil {
		return took, fmt.Errorf("verify the reply to %s: %w", subject, err)
	}
	if err := agentproto.Decode(answer.Data, want, reply); err != nil {
		r.log.WithError(err).WithField("subject", subject).Warn("reply not decoded")
		return took, err
	}
	return took, nil
}
