package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
)

// workersQueue has each message of agents go to one worker.
const workersQueue = "procfleet-worker"

// inbox takes what agents tell whichever worker hears it, and hands it on in
// batches. Agents say it again by themselves, so what finds no room is dropped,
// and counted: a store that is slow or away must not fill the memory.
type inbox struct {
	conn    *nats.Conn
	subject string
	what    string // that comes, for messages
	log     logrus.FieldLogger

	room, roomBytes   int           // for what waits
	batch, batchBytes int           // of what is handed on together
	linger            time.Duration // for more to come, after the first

	// take works on a batch, which is not empty; overflowed counts what found no
	// room.
	take       func(ctx context.Context, batch []*nats.Msg)
	overflowed func(n int)

	sub     *nats.Subscription
	dropped int  // by the subscription, as far as it was counted
	full    bool // something was dropped before the last batch
}

// inboxAgain is the pause after an error, as the one that says that messages
// were dropped.
const inboxAgain = 10 * time.Millisecond

// start subscribes; stop ends it.
func (in *inbox) start() (err error) {
	if in.sub, err = in.conn.QueueSubscribeSync(in.subject, workersQueue); err == nil {
		err = in.sub.SetPendingLimits(in.room, in.roomBytes)
	}
	if err != nil {
		return fmt.Errorf("subscribe to agents' %s: %w", in.what, err)
	}
	return nil
}

// stop is for the end of a worker; it fails only when the connection is gone.
func (in *inbox) stop() { _ = in.sub.Unsubscribe() }

// run hands on what comes until ctx ends.
func (in *inbox) run(ctx context.Context) {
	for ctx.Err() == nil {
		first, err := in.sub.NextMsgWithContext(ctx)
		in.countDropped()
		switch {
		case err == nil:
			in.take(ctx, in.gather(first))
		case !in.sub.IsValid() || pause(ctx, inboxAgain) != nil:
			return // the connection was closed for good, or the worker ends
		}
	}
}

// gather returns the first message and those that come after it, until a batch
// is full or no more have come for a while.
func (in *inbox) gather(first *nats.Msg) []*nats.Msg {
	batch, bytes := []*nats.Msg{first}, len(first.Data)
	until := time.Now().Add(in.linger)
	for len(batch) < in.batch && bytes < in.batchBytes {
		msg, err := in.sub.NextMsg(max(time.Until(until), 0))
		switch {
		case err == nil:
			batch, bytes = append(batch, msg), bytes+len(msg.Data)
		case !errors.Is(err, nats.ErrSlowConsumer):
			return batch
		}
	}
	return batch
}

// countDropped counts what came while there was no room.
func (in *inbox) countDropped() {
	dropped, err := in.sub.Dropped()
	if err != nil || dropped <= in.dropped {
		in.full = false
		return
	}
	if !in.full { // once in a row
		in.log.WithField("messages", dropped-in.dropped).Warn(in.what + " dropped: they come faster than the store takes them, agents will repeat them")
	}
	in.full = true
	in.overflowed(dropped - in.dropped)
	in.dropped = dropped
}
