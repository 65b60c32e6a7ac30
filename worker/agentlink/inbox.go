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

// workersQueue is the queue group that has each message reach one worker.
const workersQueue = "procfleet-worker"

// Inbox receives the messages that agents send to any worker on one subject, and
// hands them on in batches. Its queue is bounded: a store that is slow or
// unavailable must not fill the memory. Agents send unanswered messages again.
type Inbox struct {
	Link    *Link
	Subject string
	Name    string // in metrics and logs
	Log     logrus.FieldLogger

	Limit, LimitBytes int           // of the queue
	Batch, BatchBytes int           // messages that are handed on together
	Linger            time.Duration // for further messages, after the first of a batch

	// Take handles a batch, which is not empty. Overflow handles a message that
	// exceeds the limit, or arrives while Refuses, if set, returns true.
	Take     func(ctx context.Context, batch []*nats.Msg)
	Overflow func(msg *nats.Msg)
	Refuses  func() bool

	sub     *nats.Subscription
	closed  chan struct{} // closed when the subscription delivers no more
	dropped int           // by the subscription, as far as it was counted

	arrived chan struct{} // holds a value after a message was queued
	mu      sync.Mutex
	queue   []*nats.Msg
	bytes   int       // of the queue
	warned  time.Time // that the inbox is full
}

// Start subscribes; [Inbox.Stop] must follow.
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

// Stop ends the subscription. Messages that the server sent before still arrive,
// if the connection lasts.
func (in *Inbox) Stop() {
	if in.Link.Conn.IsConnected() && in.sub.Drain() == nil {
		return
	}
	_ = in.sub.Unsubscribe() // fails if the connection is closed, and the subscription with it
}

// put queues a message.
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

// Run hands on messages until ctx ends, and then those that are queued, unless
// work ends first.
func (in *Inbox) Run(ctx, work context.Context) {
	// Stop runs beside the loop, which under load never finds an empty queue.
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

// gather waits for further messages after the first, until they make a batch.
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

// handOn hands on the queued messages, batch by batch.
func (in *Inbox) handOn(work context.Context) {
	for batch := in.next(); len(batch) > 0 && work.Err() == nil; batch = in.next() {
		in.Take(work, batch)
	}
}

// next removes a batch from the queue: at least one message, unless it is empty.
func (in *Inbox) next() []*nats.Msg {
	in.mu.Lock()
	defer in.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(in.queue), in.Batch) && (n == 0 || bytes+in.queue[n].Size() <= in.BatchBytes) {
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

func (in *Inbox) waiting() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return int64(len(in.queue))
}

// countDropped counts the messages that the subscription dropped since: they
// arrived faster than this worker could even refuse them.
func (in *Inbox) countDropped(sub *nats.Subscription) {
	if dropped, err := sub.Dropped(); err == nil && dropped > in.dropped {
		in.Link.Metrics.InboxDropped(in.Name, dropped-in.dropped)
		in.dropped = dropped
	}
}

// ObserveInboxes registers the metrics of inboxes and begins their series.
func ObserveInboxes(meter metric.Meter, m *metrics.Metrics, all []*Inbox) error {
	for _, in := range all {
		m.InboxDropped(in.Name, 0)
		if in.Refuses == nil {
			continue // it sends no busy replies
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
