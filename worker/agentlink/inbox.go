package agentlink

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet/worker/metrics"
)

// workersQueue is the queue group of all workers: each message reaches one worker.
const workersQueue = "procfleet-worker"

// Inbox receives the messages that agents send to any worker on one subject, and passes
// them to Take in batches. Its queue is bounded, so that a slow or unavailable store
// does not exhaust the memory. Agents resend messages without a reply.
type Inbox struct {
	Link    *Link
	Subject string
	Name    string // label in metrics and logs
	Log     logrus.FieldLogger

	Limit, LimitBytes int           // maximum messages and bytes in the queue
	Batch, BatchBytes int           // messages or bytes that complete a batch
	Linger            time.Duration // wait for more messages after the first of a batch
	// AwaitedLinger, if positive, is the wait after a message with a reply subject, whose
	// sender waits.
	AwaitedLinger time.Duration

	// Take handles a batch of at least one message. Overflow handles a message that
	// exceeds the limit, or that arrives while Refuses, if set, returns true.
	Take     func(ctx context.Context, batch []*nats.Msg)
	Overflow func(msg *nats.Msg)
	Refuses  func() bool

	sub     *nats.Subscription
	closed  chan struct{} // closed when the subscription delivers no more messages
	dropped int           // messages dropped by the subscription and counted

	queue          chan *nats.Msg
	waiting, bytes atomic.Int64 // number and size of the queued messages
	warned         time.Time    // last warning that the inbox is full
}

// Start subscribes. The caller must call [Inbox.Stop].
func (in *Inbox) Start() (err error) {
	in.closed, in.queue = make(chan struct{}), make(chan *nats.Msg, in.Limit)
	if in.sub, err = in.Link.Conn.QueueSubscribe(in.Subject, workersQueue, in.put); err == nil {
		in.sub.SetClosedHandler(func(string) { close(in.closed) })
		err = in.sub.SetPendingLimits(in.Limit, in.LimitBytes)
	}
	if err != nil {
		return fmt.Errorf("subscribe to %s of agents: %w", in.Name, err)
	}
	return nil
}

// Stop ends the subscription. While the connection lasts, messages that the server has
// already sent are still delivered.
func (in *Inbox) Stop() {
	if in.Link.Conn.IsConnected() && in.sub.Drain() == nil {
		return
	}
	_ = in.sub.Unsubscribe() // fails if the connection is closed, which ends the subscription too
}

// put queues a message or passes it to Overflow. Only the subscription calls it.
func (in *Inbox) put(msg *nats.Msg) {
	in.countDropped(msg.Sub)
	if in.Refuses != nil && in.Refuses() || !in.enqueue(msg) {
		in.Overflow(msg)
	}
}

func (in *Inbox) enqueue(msg *nats.Msg) bool {
	size := int64(msg.Size())
	in.waiting.Add(1)
	if in.bytes.Add(size) <= int64(in.LimitBytes) {
		select {
		case in.queue <- msg:
			return true
		default:
		}
	}
	in.waiting.Add(-1)
	in.bytes.Add(-size)
	if time.Since(in.warned) > time.Minute {
		in.warned = time.Now()
		in.Log.WithField("inbox", in.Name).Warn("inbox full, agents will resend")
	}
	return false
}

// Run passes batches to Take until ctx ends, and then the rest of the queue, unless the
// context work ends first.
func (in *Inbox) Run(ctx, work context.Context) {
	// Stop concurrently: under load the loop never finds the queue empty.
	defer context.AfterFunc(ctx, in.Stop)()
	closed, stopped := in.closed, false
	for work.Err() == nil && (!stopped || len(in.queue) > 0) {
		select {
		case msg := <-in.queue:
			in.Take(work, in.batch(ctx, msg))
		case <-closed:
			closed, stopped = nil, true
		case <-work.Done():
		}
	}
}

// batch returns first and the queued messages after it. It waits for more up to Linger, or
// up to AwaitedLinger after the first message whose sender waits.
func (in *Inbox) batch(ctx context.Context, first *nats.Msg) []*nats.Msg {
	linger := time.NewTimer(in.Linger)
	defer linger.Stop()
	awaited := false
	shorten := func(msg *nats.Msg) {
		if !awaited && in.AwaitedLinger > 0 && msg.Reply != "" {
			awaited = true
			linger.Reset(in.AwaitedLinger)
		}
	}
	shorten(first)
	batch, size := []*nats.Msg{first}, first.Size()
	defer func() {
		in.waiting.Add(-int64(len(batch)))
		in.bytes.Add(-int64(size))
	}()
	for len(batch) < in.Batch && size < in.BatchBytes {
		var msg *nats.Msg
		select {
		case msg = <-in.queue:
		default:
			select {
			case msg = <-in.queue:
			case <-linger.C:
				return batch
			case <-ctx.Done():
				return batch
			}
		}
		shorten(msg)
		batch, size = append(batch, msg), size+msg.Size()
	}
	return batch
}

// countDropped counts the messages that the subscription dropped since the last call,
// because they arrived faster than put could reject them.
func (in *Inbox) countDropped(sub *nats.Subscription) {
	if dropped, err := sub.Dropped(); err == nil && dropped > in.dropped {
		in.Link.Metrics.InboxDrops.Add(dropped-in.dropped, in.Name)
		in.dropped = dropped
	}
}

// ObserveInboxes registers the metrics of inboxes and creates their series with zero.
func ObserveInboxes(m *metrics.Metrics, all []*Inbox) error {
	for _, in := range all {
		m.InboxDrops.Add(0, in.Name)
		if in.Refuses == nil {
			continue // sends no busy receipts
		}
		for _, cause := range []string{metrics.BusyFull, metrics.BusyUnavailable} {
			m.Busy(in.Name, cause, 0)
		}
	}
	return m.Gauge("inbox_waiting_messages", "Messages of agents that wait for this worker, by inbox.", func(o metric.Int64Observer) {
		for _, in := range all {
			o.Observe(in.waiting.Load(), metric.WithAttributes(attribute.String("inbox", in.Name)))
		}
	})
}
