package worker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
)

// workersQueue has each message of agents go to one worker.
const workersQueue = "procfleet-worker"

// inbox receives what agents send to any worker on one subject, and hands it on
// in batches. What waits is bounded: a store that is slow or unavailable must not
// fill the memory. Agents send again what was not answered.
type inbox struct {
	conn    *nats.Conn
	subject string
	name    string // in metrics and logs
	log     logrus.FieldLogger

	room, roomBytes   int           // for what waits
	batch, batchBytes int           // of what is handed on together
	linger            time.Duration // for more to come, after the first

	// take works on a batch, which is not empty; overflow on a message that
	// finds no room, or that refuses (if set) keeps from the queue.
	take     func(ctx context.Context, batch []*nats.Msg)
	overflow func(msg *nats.Msg)
	refuses  func() bool
	metrics  *metrics

	sub     *nats.Subscription
	closed  chan struct{} // nothing more comes from the subscription
	dropped int           // by the subscription, as far as it was counted

	arrived chan struct{} // holds a value after a message was queued
	mu      sync.Mutex
	queue   []*nats.Msg
	bytes   int       // of what is queued
	warned  time.Time // that the inbox is full
}

// start subscribes; stop ends it.
func (in *inbox) start() (err error) {
	in.closed, in.arrived = make(chan struct{}), make(chan struct{}, 1)
	if in.sub, err = in.conn.QueueSubscribe(in.subject, workersQueue, in.put); err == nil {
		in.sub.SetClosedHandler(func(string) { close(in.closed) })
		err = in.sub.SetPendingLimits(in.room, in.roomBytes)
	}
	if err != nil {
		return fmt.Errorf("subscribe to %s of agents: %w", in.name, err)
	}
	return nil
}

// stop ends the subscription. What the server sent before still comes, if the
// connection lasts.
func (in *inbox) stop() {
	if in.conn.IsConnected() && in.sub.Drain() == nil {
		return
	}
	_ = in.sub.Unsubscribe() // fails if the connection is closed, and the subscription with it
}

// put queues a message.
func (in *inbox) put(msg *nats.Msg) {
	in.countDropped(msg.Sub)
	if in.refuses != nil && in.refuses() || !in.enqueue(msg) {
		in.overflow(msg)
		return
	}
	select {
	case in.arrived <- struct{}{}:
	default:
	}
}

func (in *inbox) enqueue(msg *nats.Msg) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.queue) >= in.room || in.bytes+msg.Size() > in.roomBytes {
		if time.Since(in.warned) > time.Minute {
			in.warned = time.Now()
			in.log.WithField("inbox", in.name).Warn("inbox full, agents will resend")
		}
		return false
	}
	in.queue, in.bytes = append(in.queue, msg), in.bytes+msg.Size()
	return true
}

// run hands on what comes until ctx ends, and then what is queued, unless work
// ends before.
func (in *inbox) run(ctx, work context.Context) {
	// Beside the loop: under load the queue is never empty.
	defer context.AfterFunc(ctx, in.stop)()
	for {
		select {
		case <-work.Done():
			return
		case <-in.arrived:
			in.gather(ctx)
			in.handOn(work)
		case <-in.closed:
			in.handOn(work)
			return
		}
	}
}

// gather waits for more messages to come after the first, until they make a
// batch.
func (in *inbox) gather(ctx context.Context) {
	if in.linger == 0 {
		return
	}
	timer := time.NewTimer(in.linger)
	defer timer.Stop()
	for !in.enough() {
		select {
		case <-in.arrived:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (in *inbox) enough() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.queue) >= in.batch || in.bytes >= in.batchBytes
}

// handOn hands on what is queued, batch by batch.
func (in *inbox) handOn(work context.Context) {
	for batch := in.next(); len(batch) > 0 && work.Err() == nil; batch = in.next() {
		in.take(work, batch)
	}
}

// next removes a batch from the queue: at least one message, if there is any.
func (in *inbox) next() []*nats.Msg {
	in.mu.Lock()
	defer in.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(in.queue), in.batch) && (n == 0 || bytes+in.queue[n].Size() <= in.batchBytes) {
		bytes += in.queue[n].Size()
		n++
	}
	batch := slices.Clone(in.queue[:n])
	clear(in.queue[:n]) // else its messages stay in memory as long as the array
	in.queue, in.bytes = in.queue[n:], in.bytes-bytes
	if len(in.queue) == 0 {
		in.queue = nil
	}
	return batch
}

func (in *inbox) waiting() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return int64(len(in.queue))
}

// countDropped counts what the subscription dropped since: it came faster than
// this worker could even refuse it.
func (in *inbox) countDropped(sub *nats.Subscription) {
	if dropped, err := sub.Dropped(); err == nil && dropped > in.dropped {
		in.metrics.inboxDropped(in.name, dropped-in.dropped)
		in.dropped = dropped
	}
}
