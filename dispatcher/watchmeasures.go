package dispatcher

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/metric"
)

// watchMeasures is what a dispatcher counts of its watchers.
type watchMeasures struct {
	present metric.Int64UpDownCounter
	watched metric.Int64UpDownCounter
	dropped metric.Int64Counter
}

func newWatchMeasures(meter metric.Meter) (*watchMeasures, error) {
	var m watchMeasures
	var err error
	if m.present, err = meter.Int64UpDownCounter("procfleet_dispatcher_watchers",
		metric.WithDescription("Streams of task events that are open.")); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	if m.watched, err = meter.Int64UpDownCounter("procfleet_dispatcher_watched_tasks",
		metric.WithDescription("Tasks that are being watched.")); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	if m.dropped, err = meter.Int64Counter("procfleet_dispatcher_dropped_watchers",
		metric.WithDescription("Watchers that took nothing for too long.")); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	m.watchers(0) // who looks at them before anybody watches finds them too
	m.topics(0)
	m.dropped.Add(context.Background(), 0)
	return &m, nil
}

func (m *watchMeasures) watchers(n int64) { m.present.Add(context.Background(), n) }

func (m *watchMeasures) topics(n int64) { m.watched.Add(context.Background(), n) }

func (m *watchMeasures) drop(ctx context.Context) { m.dropped.Add(ctx, 1) }
