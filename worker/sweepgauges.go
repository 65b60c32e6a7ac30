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
	due  atomic.Int64 // visits that were due in the last round
	lag  atomic.Int64 // nanoseconds since the oldest of them became due
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
		metric.WithDescription("Visits that were due in the last rounds of the shards held here, as many as a round takes."),
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
	_, err4 := meter.Float64ObservableGauge("procfleet_worker_sweep_lag_seconds", metric.WithUnit("s"),
		metric.WithDescription("How long the oldest visit of the last rounds had been due; overdue tasks end as much later."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			most := int64(0)
			for i := range g {
				most = max(most, g[i].lag.Load())
			}
			o.Observe(time.Duration(most).Seconds())
			return nil
		}))
	return errors.Join(err, err2, err3, err4)
}

// round stores what a round of a shard that is held begins with.
func (g *sweepGauges) round(shard int, due []taskstore.Visit, now time.Time) {
	lag := time.Duration(0)
	if len(due) > 0 { // the first is the oldest, or was set before the clock stepped back
		lag = max(0, now.Sub(due[0].At))
	}
	g[shard].held.Store(true)
	g[shard].due.Store(int64(len(due)))
	g[shard].lag.Store(int64(lag))
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
	g[shard].lag.Store(0)
	g[shard].late.Store(0)
}
