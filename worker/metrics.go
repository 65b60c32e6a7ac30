package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet"
)

// metrics is what a worker counts. No host appears in it.
type metrics struct {
	delivered metric.Int64Counter
	recorded  metric.Int64Counter
	ended     metric.Int64Counter
	swept     metric.Int64Counter
	told      metric.Int64Counter
	batch     metric.Int64Histogram
	store     metric.Float64Histogram

	chunks atomic.Int64 // in flight, parked ones included
}

func newMetrics(m metric.Meter, room *parkingRoom) (*metrics, error) {
	var s metrics
	var errs [9]error
	s.delivered, errs[0] = m.Int64Counter("procfleet_worker_items_delivered",
		metric.WithDescription("Items that an agent accepted."))
	s.recorded, errs[1] = m.Int64Counter("procfleet_worker_results_recorded",
		metric.WithDescription("Results that became their item's result."))
	s.ended, errs[2] = m.Int64Counter("procfleet_worker_server_results",
		metric.WithDescription("Results made by the server for want of an agent's word, by reason."))
	s.swept, errs[3] = m.Int64Counter("procfleet_worker_sweep_actions",
		metric.WithDescription("What the sweep had to do, by action."))
	s.told, errs[4] = m.Int64Counter("procfleet_worker_tasks_told",
		metric.WithDescription("Ends of tasks that were told."))
	s.batch, errs[5] = m.Int64Histogram("procfleet_worker_collect_batch_results",
		metric.WithDescription("Results in one call to the store."),
		metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000))
	s.store, errs[6] = m.Float64Histogram("procfleet_worker_store_seconds",
		metric.WithDescription("Time of calls to the task store, waiting for it included."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	_, errs[7] = m.Int64ObservableGauge("procfleet_worker_chunks_in_flight",
		metric.WithDescription("Chunks being delivered, parked ones included."), observe(&s.chunks))
	_, errs[8] = m.Int64ObservableGauge("procfleet_worker_chunks_parked",
		metric.WithDescription("Chunks that stepped aside for slow hosts."), observe(&room.used))
	return &s, errors.Join(errs[:]...)
}

func observe(value *atomic.Int64) metric.Int64ObservableGaugeOption {
	return metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
		o.Observe(value.Load())
		return nil
	})
}

// storeTime notes how long a call took that began at the given moment.
func (m *metrics) storeTime(ctx context.Context, call string, began time.Time) {
	m.store.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(attribute.String("call", call)))
}

func (m *metrics) sweep(ctx context.Context, action string, n int) {
	if n > 0 {
		m.swept.Add(ctx, int64(n), metric.WithAttributes(attribute.String("action", action)))
	}
}

// serverResults counts the results that the server made.
func (m *metrics) serverResults(ctx context.Context, results []procfleet.Result) {
	for i := range results {
		if results[i].Rank == procfleet.RankServer {
			m.ended.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", string(results[i].Reason))))
		}
	}
}
