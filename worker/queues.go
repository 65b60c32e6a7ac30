package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
)

// queueEvery is the pause between looks at the queues. Every worker looks,
// one small request for each queue, and all say the same.
const queueEvery = 10 * time.Second

// queueGauges is how much waits in each queue, as of the last look.
type queueGauges struct{ depths []*queueDepth }

// queueDepth is one queue.
type queueDepth struct {
	lane   procfleet.Lane
	labels metric.MeasurementOption
	known  atomic.Bool // looked at, and there
	// Messages that nobody pulled yet, and those that were pulled and not
	// acknowledged.
	waiting, held atomic.Int64
}

func (g *queueGauges) register(meter metric.Meter) error {
	for _, lane := range procfleet.Lanes() {
		g.depths = append(g.depths, &queueDepth{lane: lane, labels: metric.WithAttributeSet(attribute.NewSet(
			attribute.String("queue", "ops"), attribute.String("lane", string(lane))))})
	}
	gauge := func(name, text string, value func(*queueDepth) int64) error {
		_, err := meter.Int64ObservableGauge("procfleet_worker_queue_"+name, metric.WithDescription(text),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				for _, q := range g.depths {
					if q.known.Load() {
						o.Observe(value(q), q.labels)
					}
				}
				return nil
			}))
		return err
	}
	return errors.Join(
		gauge("waiting_messages", "Messages that no worker has pulled, by queue and lane; the same figure from every worker.",
			func(q *queueDepth) int64 { return q.waiting.Load() }),
		gauge("held_messages", "Messages that workers hold and have not acknowledged, by queue and lane; the same figure from every worker.",
			func(q *queueDepth) int64 { return q.held.Load() }))
}

// watch looks at the queues until ctx ends. A queue that cannot be looked at
// has no figure, rather than an old one.
func (g *queueGauges) watch(ctx context.Context, b *bus.Bus) {
	for {
		for _, q := range g.depths {
			q.look(ctx, b)
		}
		if pause(ctx, jitter(queueEvery)) != nil {
			return
		}
	}
}

func (q *queueDepth) look(ctx context.Context, b *bus.Bus) {
	ctx, cancel := context.WithTimeout(ctx, queueEvery/2)
	defer cancel()
	consumer, err := b.DeliverConsumer(ctx, q.lane) // which asks for the very figures
	if err != nil {
		q.known.Store(false)
		return
	}
	info := consumer.CachedInfo()
	q.waiting.Store(int64(info.NumPending)) //nolint:gosec // a number of messages
	q.held.Store(int64(info.NumAckPending))
	q.known.Store(true)
}
