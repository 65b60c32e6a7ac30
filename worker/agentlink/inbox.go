package agentlink

import (
	"context"
	"fmt"
	"slices"
	"sync"
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
	Batch, BatchBytes int           // maximum messages and bytes per batch
	Linger            time.Duration // wait for more messages after the first of a batch

	// Take handles a batch of at least one message. Overflow handles a message that
	// exceeds the limit, or that arrives while Refuses, if set, returns true.
	Take     func(ctx context.Context, batch []*nats.Msg)
	Overflow func(msg *nats.Msg)
	Refuses  func() bool

	sub     *nats.Subscription
	closed  chan struct{} // closed when the subscription delivers no more messages
	dropped int           // messages dropped by the subscription and counted

	arrived chan struct{} // has a value after a message was queued
	mu      sync.Mutex
	queue   []*nats.Msg
	bytes   int       // size of the queue
	warned  time.Time // last warning that the inbox is full
}

// Start subscribes. The caller must call [Inbox.Stop].
func (in *Inbox) Start() (err error) {
	in.closed, in.arrived = make(chan struct{}), make(chan struct{}, 1)
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

// put queues a message or passes it to Overflow.
func (in *Inbox) put(msg *nats.Msg) {
	in.countDropped(msg.Sub)
	if in.Refuses != nil && in.Refuses() || !in.enqueue(msg) {
		in.Overflow(msg)
		return
	}
	select {
	case in.arrived <- struct{}{}:
	default:
	}
}

func (in *Inbox) enqueue(msg *nats.Msg) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.queue) >= in.Limit || in.bytes+msg.Size() > in.LimitBytes {
		if time.Since(in.warned) > time.Minute {
			in.warned = time.Now()
			in.Log.WithField("inbox", in.Name).Warn("inbox full, agents will resend")
		}
		return false
	}
	in.queue, in.bytes = append(in.queue, msg), in.bytes+msg.Size()
	return true
}

// Run passes batches to Take until ctx ends, and then the rest of the queue, unless the
// context work ends first.
func (in *Inbox) Run(ctx, work context.Context) {
	// Stop concurrently: under load the loop never finds the queue empty.
	defer context.AfterFunc(ctx, in.Stop)()
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

// gather waits up to Linger until the queue has enough messages for a batch.
func (in *Inbox) gather(ctx context.Context) {
	if in.Linger == 0 {
		return
	}
	timer := time.NewTimer(in.Linger)
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

func (in *Inbox) enough() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.queue) >= in.Batch || in.bytes >= in.BatchBytes
}

// handOn passes the queued messages to Take, batch by batch.
func (in *Inbox) handOn(work context.Context) {
	for batch := in.next(); len(batch) > 0 && work.Err() == nil; batch = in.next() {
		in.Take(work, batch)
	}
}

// next removes a batch from the queue. The batch is empty only if the queue is.
func (in *Inbox) next() []*nats.Msg {
	in.mu.Lock()
	defer in.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(in.queue), in.Batch) && (n == 0 || bytes+in.queue[n].Size() <= in.BatchBytes) {
		bytes += in.queue[n].Size()
		n++
	}
	batch := slices.Clone(in.queue[:n])
	clear(in.queue[:n]) // frees the messages before their array is freed
	in.queue, in.bytes = in.queue[n:], in.bytes-bytes
	if len(in.queue) == 0 {
		in.queue = nil
	}
	return batch
}

func (in *Inbox) waiting() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return int64(len(in.queue))
}

// countDropped counts the messages that the subscription dropped since the last call,
// because they arrived faster than put could reject them.
func (in *Inbox) countDropped(sub *nats.Subscription) {
	if dropped, err := sub.Dropped(); err == nil && dropped > in.dropped {
		in.Link.Metrics.InboxDropped(in.Name, dropped-in.dropped)
		in.dropped = dropped
	}
}

// ObserveInboxes registers the metrics of inboxes and creates their series with zero.
func ObserveInboxes(meter metric.Meter, m *metrics.Metrics, all []*Inbox) error {
	for _, in := range all {
		m.InboxDropped(in.Name, 0)
		if in.Refuses == nil {
			continue // sends no busy receipts
		}
		for _, cause := range []string{metrics.BusyFull, metrics.BusyUnavailable} {
			m.Busy(in.Name, cause, 0)
		}
	}
	_, err := meter.Int64ObservableGauge("procfleet_worker_inbox_waiting_messages", metric.WithDescription("Messages of agents that wait for this worker, by inbox."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for _, in := range all {
				o.Observe(in.waiting(), metric.WithAttributes(attribute.String("inbox", in.Name)))
			}
			return nil
		}))
	return err
}
