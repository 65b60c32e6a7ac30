package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// Bounds of what waits in the subscription. Beyond them messages are dropped;
// whoever sent them asks again.
const (
	pendingMessages = 8192
	pendingBytes    = 64 << 20
)

// Bounds of what is taken from it at a time, to share one fsync.
const (
	batchMessages = 256
	batchBytes    = 8 << 20
)

// intake takes commands, requests to send results again, and the word that
// settings changed. One goroutine
// does all of it, so that operations reach the engine in the order in which
// the journal judged their fences.
type intake struct {
	ledger   ledger
	engine   engine
	reporter *reporter
	prompt   *prompt
	settings *settingsKeeper
	clock    *clock
	sync     func(context.Context) bool // exchanges the time with a worker; false = none answered
	resume   func()                     // has recovered operations judged; blocks until they are
	self     identity
	crash    func(point string)
	log      logrus.FieldLogger

	answers sync.WaitGroup // that wait for results
}

// ledger is the part of the journal that takes operations in.
type ledger interface {
	Receive([]journal.Op) ([]journal.Verdict, error)
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
	defer in.answers.Wait()
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

// batch adds to first what else waits already.
func (in *intake) batch(sub *nats.Subscription, first *nats.Msg) []*nats.Msg {
	batch, size := []*nats.Msg{first}, len(first.Data)
	for len(batch) < batchMessages && size < batchBytes {
		if waiting, _, err := sub.Pending(); err != nil || waiting == 0 {
			break
		}
		msg, err := sub.NextMsg(time.Millisecond) // it is there
		if err != nil {
			break // the next wait reports it
		}
		batch = append(batch, msg)
		size += len(msg.Data)
	}
	return batch
}

// turnAway ends the subscription and tells those who wait that the agent is
// going, so that they need not wait for a timeout.
func (in *intake) turnAway(sub *nats.Subscription) {
	const patience = time.Second
	if err := sub.Drain(); err != nil {
		return // the connection is gone, and with it whoever waits
	}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		msg, err := sub.NextMsg(patience)
		if err != nil {
			return // drained
		}
		in.refuseStopping(msg)
	}
}

// command is a message with what became of its items so far.
type command struct {
	msg   *nats.Msg
	body  agentproto.Command
	items []agentproto.ReplyItem
	ops   []journal.Op // those that can be received
	at    []int        // index in items of each op
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
		case agentproto.TypeSettingsChanged:
			in.settings.changed()
		default:
			in.refuse(msg, agentproto.RefusedUndecodable, fmt.Sprintf("message type %q is unknown to this agent", kind))
		}
	}
	if commands = in.inTime(ctx, commands); len(commands) > 0 {
		in.accept(ctx, commands)
	}
}

// inTime returns the commands that may still be accepted and refuses the
// others. A command that was sent after the present moment, by the estimate of
// the server's time, shows that the estimate is wrong: a suspended guest comes
// back with the clocks of before. Then the time is exchanged, once for all
// commands, before any is judged.
func (in *intake) inTime(ctx context.Context, commands []*command) []*command {
	behind := func(c *command) bool { return in.clock.behind(c.body.Sent) }
	unknown := slices.ContainsFunc(commands, behind) && !in.sync(ctx)
	return slices.DeleteFunc(commands, func(c *command) bool {
		switch {
		case unknown && behind(c):
			in.refuse(c.msg, agentproto.RefusedExpired, fmt.Sprintf(
				"the command was sent at %s, the agent's estimate of the servers' time is earlier or missing, and no worker answered when it asked for the time",
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

// verifiedType returns the type of a message from a server of this fleet. It
// refuses any other message and returns "".
func (in *intake) verifiedType(msg *nats.Msg) (messageType string) {
	messageType, err := agentproto.PeekType(msg.Data)
	if err == nil && messageType == "" {
		err = errors.New("it has no type")
	}
	if err != nil {
		in.refuse(msg, agentproto.RefusedUndecodable, err.Error())
		return ""
	}
	if err := in.self.verify(msg, messageType, ""); err != nil {
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

// decode reads a command, or refuses it and returns nil.
func (in *intake) decode(msg *nats.Msg) *command {
	c := &command{msg: msg}
	if err := agentproto.Decode(msg.Data, agentproto.TypeCommand, &c.body); err != nil {
		in.refuse(msg, agentproto.RefusedUndecodable, err.Error())
		return nil
	}
	if word, why := in.unacceptable(&c.body); word != "" {
		in.refuse(msg, word, why)
		return nil
	}
	return c
}

// unacceptable says why a whole command is turned away, whatever the time is.
func (in *intake) unacceptable(c *agentproto.Command) (word, why string) {
	if word, why = in.foreign(c.Host, c.Instance); word != "" {
		return word, why
	}
	if c.Task == "" {
		return agentproto.RefusedUndecodable, "task is missing"
	}
	if err := agentproto.ValidLane(c.Lane); err != nil {
		return agentproto.RefusedUndecodable, err.Error()
	}
	if c.Incarnation != "" && c.Incarnation != in.self.incarnation {
		return agentproto.RefusedIncarnation, fmt.Sprintf("this is process %s of the agent, not %q: it was restarted, or a copy of it runs",
			in.self.incarnation, c.Incarnation)
	}
	return "", ""
}

// foreign says why a message is not meant for this agent.
func (in *intake) foreign(host, instance string) (word, why string) {
	switch {
	case host != in.self.host:
		return agentproto.RefusedHost, fmt.Sprintf("this is the agent of host %s, not of %q", in.self.host, host)
	case instance != "" && instance != in.self.instance:
		return agentproto.RefusedInstance, fmt.Sprintf("this is instance %s, not %q: the agent was installed anew", in.self.instance, instance)
	}
	return "", ""
}
