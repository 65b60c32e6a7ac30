package metrics

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/storecall"
)

// SweepGauges has the state of this worker's sweep, by shard.
type SweepGauges [taskstore.SweepShards]shardGauges

type shardGauges struct {
	leased  atomic.Bool
	due     atomic.Int64 // visits due in the last round
	lag     atomic.Int64 // nanoseconds since the oldest visit became due
	overdue atomic.Int64 // nanoseconds by which the most overdue task of the last round exceeded its deadline
}

func (g *SweepGauges) register(m *Metrics) error {
	total := func(name, text string, of func(*shardGauges) int64) error {
		return m.Gauge("sweep_"+name, text, func(o metric.Int64Observer) {
			n := int64(0)
			for i := range g {
				n += of(&g[i])
			}
			o.Observe(n)
		})
	}
	longest := func(name, text string, of func(*shardGauges) int64) error {
		_, err := m.meter.Float64ObservableGauge("procfleet_worker_sweep_"+name, metric.WithUnit("s"), metric.WithDescription(text),
			metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
				most := int64(0)
				for i := range g {
					most = max(most, of(&g[i]))
				}
				o.Observe(time.Duration(most).Seconds())
				return nil
			}))
		return err
	}
	return errors.Join(
		total("leases", "Shards of the sweep whose lease this worker has.", func(s *shardGauges) int64 {
			if s.leased.Load() {
				return 1
			}
			return 0
		}),
		total("due_tasks", "Visits that were due in the last rounds of this worker's shards, limited to the size of a round.",
			func(s *shardGauges) int64 { return s.due.Load() }),
		longest("overdue_seconds", "Time of the most overdue open task of the last rounds past its deadline.",
			func(s *shardGauges) int64 { return s.overdue.Load() }),
		longest("lag_seconds", "Delay of the oldest visit of the last rounds; overdue tasks end later by it.",
			func(s *shardGauges) int64 { return s.lag.Load() }))
}

// Round stores the state of a leased shard at the start of a round.
func (g *SweepGauges) Round(shard int, due []taskstore.Visit, now time.Time) {
	lag := time.Duration(0)
	if len(due) > 0 { // the first visit is the oldest, unless the clock stepped back
		lag = max(0, now.Sub(due[0].At))
	}
	g[shard].set(true, len(due), lag)
}

// Overdue records an open task that exceeds its deadline by the given time.
func (g *SweepGauges) Overdue(shard int, by time.Duration) {
	g[shard].overdue.Store(max(g[shard].overdue.Load(), int64(by)))
}

// Forget records that this worker does not hold the shard's lease.
func (g *SweepGauges) Forget(shard int) { g[shard].set(false, 0, 0) }

func (s *shardGauges) set(leased bool, due int, lag time.Duration) {
	s.leased.Store(leased)
	s.due.Store(int64(due))
	s.lag.Store(int64(lag))
	s.overdue.Store(0)
}

// queueEvery is the interval of queue readings. Every worker sends one small request
// per queue, and all report the same values.
const queueEvery = 10 * time.Second

// QueueGauges has the number of messages in each queue at the last reading.
type QueueGauges struct{ depths []*queueDepth }

type queueDepth struct {
	lane    procfleet.Lane
	labels  metric.MeasurementOption
	known   atomic.Bool  // the last reading succeeded
	waiting atomic.Int64 // messages that no worker has pulled
	held    atomic.Int64 // messages that were pulled but not acknowledged
}

func (g *QueueGauges) register(m *Metrics) error {
	for _, lane := range procfleet.Lanes() {
		g.depths = append(g.depths, &queueDepth{lane: lane, labels: metric.WithAttributeSet(attribute.NewSet(
			attribute.String("queue", "ops"), attribute.String("lane", string(lane))))})
	}
	gauge := func(name, text string, value func(*queueDepth) int64) error {
		return m.Gauge("queue_"+name, text, func(o metric.Int64Observer) {
			for _, q := range g.depths {
				if q.known.Load() {
					o.Observe(value(q), q.labels)
				}
			}
		})
	}
	return errors.Join(
		gauge("waiting_messages", "Messages that no worker has pulled, by queue and lane; every worker reports the same value.",
			func(q *queueDepth) int64 { return q.waiting.Load() }),
		gauge("held_messages", "Messages that workers have pulled and not acknowledged, by queue and lane; every worker reports the same value.",
			func(q *queueDepth) int64 { return q.held.Load() }))
}

// Run reads the queues periodically until ctx ends. A queue that cannot be read is
// omitted instead of reported with an old value.
func (g *QueueGauges) Run(ctx context.Context, b *bus.Bus) {
	for {
		for _, q := range g.depths {
			q.read(ctx, b)
		}
		if storecall.Pause(ctx, storecall.Jitter(queueEvery)) != nil {
			return
		}
	}
}

func (q *queueDepth) read(ctx context.Context, b *bus.Bus) {
	ctx, cancel := context.WithTimeout(ctx, queueEvery/2)
	defer cancel()
	consumer, err := b.DeliverConsumer(ctx, q.lane) // the consumer info has the counts
	if err != nil {
		q.known.Store(false)
		return
	}
	info := consumer.CachedInfo()
	q.waiting.Store(int64(info.NumPending)) //nolint:gosec // message counts are small
	q.held.Store(int64(info.NumAckPending))
	q.known.Store(true)
}
