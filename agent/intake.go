package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// Bounds of the subscription's queue. Further messages are dropped, and their senders retry.
const (
	pendingMessages = 8192
	pendingBytes    = 64 << 20
)

// Bounds of one batch of messages, whose operations share one fsync.
const (
	batchMessages = 256
	batchBytes    = 8 << 20
)

// intake handles commands, resend requests and notifications of changed settings.
// One goroutine handles all of them, so that operations reach the engine in the
// order in which the journal checked their fences.
type intake struct {
	*requester

	ledger   ledger
	engine   Engine
	reporter *reporter
	prompt   *prompt
	settings *settingsClient
	sync     func(context.Context) bool // requests the servers' time from a worker; false = no reply
	resume   func()                     // queues the recovered operations in the engine; blocks until done
	crash    func(point string)

	replies sync.WaitGroup // running goroutines of replyWithResults
}

// ledger is the part of the journal that intake uses.
type ledger interface {
	Receive([]journal.Op) ([]journal.Admission, error)
	Cancel([]journal.Cancellation) ([]journal.Decision, error)
	Finish(journal.ID, agentproto.Result) error
	Acknowledge([]journal.ID) error
	Result(journal.ID) (r agentproto.Result, open, known bool)
}

func subscribe(conn *nats.Conn, subject string) (*nats.Subscription, error) {
	sub, err := conn.QueueSubscribeSync(subject, agentproto.AgentQueue)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	if err := sub.SetPendingLimits(pendingMessages, pendingBytes); err != nil {
		return nil, fmt.Errorf("bound the subscription to %s: %w", subject, err)
	}
	return sub, nil
}

// run handles messages until ctx ends or the connection is closed for good.
func (in *intake) run(ctx context.Context, sub *nats.Subscription) error {
	defer in.replies.Wait()
	for {
		first, err := sub.NextMsgWithContext(ctx)
		switch {
		case ctx.Err() != nil:
			if first != nil {
				in.refuseStopping(first)
			}
			return nil
		case errors.Is(err, nats.ErrSlowConsumer):
			in.log.WithError(err).Warn("command queue full, commands dropped")
		case err != nil:
			return fmt.Errorf("wait for commands on %s: %w", sub.Subject, err)
		default:
			in.handle(ctx, in.batch(sub, first))
		}
	}
}

// batch returns first and the messages that are already queued, up to the bounds of a
// batch. It does not wait for further messages.
func (in *intake) batch(sub *nats.Subscription, first *nats.Msg) []*nats.Msg {
	batch, size := []*nats.Msg{first}, len(first.Data)
	for len(batch) < batchMessages && size < batchBytes {
		if waiting, _, err := sub.Pending(); err != nil || waiting == 0 {
			break
		}
		msg, err := sub.NextMsg(time.Millisecond) // does not block, a message is queued
		if err != nil {
			break // the next NextMsgWithContext returns the error
		}
		batch = append(batch, msg)
		size += len(msg.Data)
	}
	return batch
}

// refuseQueued ends the subscription and refuses the queued messages, so that their senders
// do not wait for a timeout.
func (in *intake) refuseQueued(sub *nats.Subscription) {
	const patience = time.Second
	if err := sub.Drain(); err != nil {
		return // the connection is closed: no refusal can be sent
	}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		msg, err := sub.NextMsg(patience)
		if err != nil {
			return // drained
		}
		in.refuseStopping(msg)
	}
}

// command is a received command and the state of its items.
type command struct {
	msg       *nats.Msg
	body      agentproto.Command
	items     []agentproto.ReplyItem
	ops       []journal.Op // operations of the valid items
	itemIndex []int        // index in items of each element of ops
}

func (in *intake) handle(ctx context.Context, batch []*nats.Msg) {
	var commands []*command
	for _, msg := range batch {
		switch kind := in.verifiedType(msg); kind {
		case "":
		case agentproto.TypeCommand:
			if c := in.decode(msg); c != nil {
				commands = append(commands, c)
			}
		case agentproto.TypeResend:
			in.resend(msg)
		case agentproto.TypeCancel:
			in.cancel(msg)
		case agentproto.TypeOutput:
			in.output(msg)
		case agentproto.TypeSettingsChanged:
			in.settings.changed()
		default:
			in.refuse(msg, agentproto.RefusedUndecodable, fmt.Sprintf("message type %q is unknown to this agent, whose protocol has version 1, such as %q: install servers and agents of one release", kind, agentproto.TypeCommand))
		}
	}
	if commands = in.inTime(ctx, commands); len(commands) > 0 {
		in.accept(ctx, commands)
	}
}

// inTime returns the commands that may still be accepted and refuses the others. If a
// command was sent after the estimated servers' time, the estimate is wrong, as in a
// virtual machine resumed from a snapshot. Then inTime requests the servers' time first,
// once for all commands.
func (in *intake) inTime(ctx context.Context, commands []*command) []*command {
	behind := func(c *command) bool { return in.clock.behind(c.body.Sent) }
	unknown := slices.ContainsFunc(commands, behind) && !in.sync(ctx)
	return slices.DeleteFunc(commands, func(c *command) bool {
		switch {
		case unknown && behind(c):
			in.refuse(c.msg, agentproto.RefusedExpired, fmt.Sprintf(
				"the command was sent at %s, the agent's estimate of the servers' time is earlier or missing, and no worker replied to its time request",
				c.body.Sent.UTC().Format(time.RFC3339Nano)))
		case !in.clock.surelyBefore(c.body.AcceptBefore):
			in.refuse(c.msg, agentproto.RefusedExpired,
				fmt.Sprintf("accept_before %s has passed", c.body.AcceptBefore.UTC().Format(time.RFC3339Nano)))
		default:
			return false
		}
		return true
	})
}

// verifiedType returns the type of a message if a server of this fleet signed the message.
// Otherwise it refuses the message and returns "".
func (in *intake) verifiedType(msg *nats.Msg) (messageType string) {
	messageType, err := agentproto.PeekType(msg.Data)
	if err == nil && messageType == "" {
		err = errors.New("it has no type")
	}
	if err != nil {
		in.refuse(msg, agentproto.RefusedUndecodable, err.Error())
		return ""
	}
	if err := in.verify(msg, messageType, ""); err != nil {
		in.refuse(msg, agentproto.RefusedSignature, err.Error())
		return ""
	}
	return messageType
}

func (in *intake) refuseStopping(msg *nats.Msg) {
	if in.verifiedType(msg) != "" {
		in.refuse(msg, agentproto.RefusedStopping, "the agent is stopping")
	}
}

// decode returns the decoded command. It refuses an invalid command and returns nil.
func (in *intake) decode(msg *nats.Msg) *command {
	c := &command{msg: msg}
	if err := agentproto.Decode(msg.Data, agentproto.TypeCommand, &c.body); err != nil {
		in.refuse(msg, agentproto.RefusedUndecodable, err.Error())
		return nil
	}
	if refused, why := in.refusal(&c.body); refused != "" {
		in.refuse(msg, refused, why)
		return nil
	}
	return c
}

// refusal returns the reason to refuse a whole command, except expiry; "" = no reason.
func (in *intake) refusal(c *agentproto.Command) (refused, why string) {
	if refused, why = in.misaddressed(c.Host, c.Instance); refused != "" {
		return refused, why
	}
	if c.Task == "" {
		return agentproto.RefusedUndecodable, "task is missing"
	}
	if err := agentproto.ValidLane(c.Lane); err != nil {
		return agentproto.RefusedUndecodable, err.Error()
	}
	if c.Incarnation != "" && c.Incarnation != in.incarnation {
		return agentproto.RefusedIncarnation, fmt.Sprintf("this is process %s of the agent, not %q: it was restarted, or a copy of it runs",
			in.incarnation, c.Incarnation)
	}
	return "", ""
}

// misaddressed returns the reason to refuse a message for another agent; "" = the message
// is for this agent.
func (in *intake) misaddressed(host, instance string) (refused, why string) {
	switch {
	case host != in.host:
		return agentproto.RefusedHost, fmt.Sprintf("this is the agent of host %s, not of %q", in.host, host)
	case instance != "" && instance != in.instance:
		return agentproto.RefusedInstance, fmt.Sprintf("this is instance %s, not %q: the agent was reinstalled", in.instance, instance)
	}
	return "", ""
}
