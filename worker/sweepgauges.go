package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet/taskstore"
)

// sweepGauges is where the sweep of this worker stands, by shard.
type sweepGauges [taskstore.SweepShards]struct {
	held atomic.Bool
	due  atomic.Int64 // visits that were due at the last look
	late atomic.Int64 // nanoseconds by which the latest open task of the last round was past its deadline
}

func (g *sweepGauges) register(meter metric.Meter) error {
	_, err := meter.Int64ObservableGauge("procfleet_worker_sweep_leases",
		metric.WithDescription("Shards of the sweep that this worker holds."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			n := int64(0)
			for i := range g {
				if g[i].held.Load() {
					n++
				}
			}
			o.Observe(n)
			return nil
		}))
	_, err2 := meter.Int64ObservableGauge("procfleet_worker_sweep_due_tasks",
		metric.WithDescription("Visits that were due at the last look at the shards held here, as many as one round takes."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			n := int64(0)
			for i := range g {
				n += g[i].due.Load()
			}
			o.Observe(n)
			return nil
		}))
	_, err3 := meter.Float64ObservableGauge("procfleet_worker_sweep_overdue_seconds", metric.WithUnit("s"),
		metric.WithDescription("How far the most overdue open task of the last rounds was past its deadline."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			most := int64(0)
			for i := range g {
				most = max(most, g[i].late.Load())
			}
			o.Observe(time.Duration(most).Seconds())
			return nil
		}))
	return errors.Join(err, err2, err3)
}

// round notes a look at a shard that is held.
func (g *sweepGauges) round(shard, due int) {
	g[shard].held.Store(true)
	g[shard].due.Store(int64(due))
	g[shard].late.Store(0)
}

// overdue notes an open task past its deadline.
func (g *sweepGauges) overdue(shard int, by time.Duration) {
	g[shard].late.Store(max(g[shard].late.Load(), int64(by)))
}

// forget notes that a shard is another worker's.
func (g *sweepGauges) forget(shard int) {
	g[shard].held.Store(false)
	g[shard].due.Store(0)
	g[shard].late.Store(0)
}
