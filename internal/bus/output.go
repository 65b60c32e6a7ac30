package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// ErrNoAgent is the error of a request to a host on which no agent is connected.
var ErrNoAgent = errors.New("no agent is connected")

// OutputQuery requests the output of a process: after an offset of a file, or without a file
// the last lines.
type OutputQuery struct {
	Host   procfleet.Host
	Key    string // of the process
	File   string
	Offset int64
	Tail   int           // lines
	Age    time.Duration // instead of Tail: the output of this last time
	Log    bool          // the log file of the process instead of its output
}

// OutputPage is a part of the output of a process, in any bytes.
type OutputPage struct {
	File string // "" if the agent has no output of the process
	Data []byte
	Next int64 // offset in File after Data
	More bool  // there is more already
	Lost bool  // output between the requested position and Data is gone
	// Problem says why File is empty, if the agent knows more.
	Problem string
}

// Output requests a part of the output of a process from the agent of its host. The error wraps
// [ErrNoAgent] or [ErrUnavailable] if it is temporary.
func (b *Bus) Output(ctx context.Context, q OutputQuery) (OutputPage, error) {
	reply, err := b.requestOutput(ctx, q.Host, &agentproto.Output{
		Key: q.Key, File: q.File, Offset: q.Offset, Tail: q.Tail, AgeMS: q.Age.Milliseconds(), LogPath: q.Log,
	})
	switch {
	case err != nil:
		return OutputPage{}, err
	case reply.Refused != "":
		return OutputPage{}, fmt.Errorf("%w: the agent of host %s refused: %.200q", ErrUnavailable, q.Host, reply.Message)
	}
	return OutputPage{File: reply.File, Data: reply.Data, Next: reply.Next, More: reply.More, Lost: reply.Lost, Problem: reply.Message}, nil
}

// requestOutput sets the header and the host of the request, and returns the reply.
func (b *Bus) requestOutput(ctx context.Context, host procfleet.Host, request *agentproto.Output) (*agentproto.OutputReply, error) {
	subject := agentproto.AgentSubject(int64(host.Cloud), host.Addr)
	id := rand.Text() + ".0"
	request.Header = agentproto.Header{Type: agentproto.TypeOutput, ID: id, Sent: time.Now().UTC()}
	request.Host = host.String()
	data, err := agentproto.Encode(request)
	if err != nil {
		return nil, err
	}
	conn := b.js.Conn()
	sub, err := conn.SubscribeSync(agentproto.AnswerSubject(subject, id))
	if err != nil {
		return nil, publishError("subscribe to the agent's reply", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	msg := &nats.Msg{Subject: subject, Reply: sub.Subject, Header: nats.Header{}, Data: data}
	b.keys().Sign(msg.Header, host.String(), &fleetkey.Message{Purpose: agentproto.TypeOutput, Body: data})
	if err := conn.PublishMsg(msg); err != nil {
		return nil, publishError("request output", err)
	}
	answer, err := sub.NextMsgWithContext(ctx)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("%w: host %s", ErrNoAgent, host)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%w: the agent of host %s did not reply", ErrUnavailable, host)
	case err != nil:
		return nil, publishError("request output", err)
	}
	return b.outputReply(host, id, answer)
}

func (b *Bus) outputReply(host procfleet.Host, id string, answer *nats.Msg) (*agentproto.OutputReply, error) {
	kind, err := agentproto.PeekType(answer.Data)
	if err != nil {
		return nil, err
	}
	if err := b.keys().Verify(answer.Header, host.String(), &fleetkey.Message{Purpose: kind, Answers: id, Body: answer.Data}); err != nil {
		return nil, fmt.Errorf("reply of host %s: %w", host, err)
	}
	var reply agentproto.OutputReply
	if err := agentproto.Decode(answer.Data, agentproto.TypeOutputReply, &reply); err != nil {
		return nil, fmt.Errorf("the agent of host %s does not serve output: %w", host, err)
	}
	return &reply, nil
}
