package dispatcher

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// measures is what a dispatcher counts.
type measures struct {
	requests metric.Float64Histogram
	tasks    metric.Int64Counter
	items    metric.Int64Counter
}

func newMeasures(meter metric.Meter) (*measures, error) {
	var m measures
	var err error
	if m.requests, err = meter.Float64Histogram("procfleet_dispatcher_request_seconds",
		metric.WithDescription("Time from a request's header to the end of its answer."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30)); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	if m.tasks, err = meter.Int64Counter("procfleet_dispatcher_accepted_tasks",
		metric.WithDescription("Requests answered with the id of a task, repeats included.")); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	if m.items, err = meter.Int64Counter("procfleet_dispatcher_accepted_items",
		metric.WithDescription("Processes on hosts in those tasks.")); err != nil {
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	return &m, nil
}

func (m *measures) request(ctx context.Context, call string, status int, took time.Duration) {
	m.requests.Record(ctx, took.Seconds(), metric.WithAttributes(
		attribute.String("dialect", call), attribute.String("status", strconv.Itoa(status))))
}

func (m *measures) accepted(ctx context.Context, call string, items int) {
	labels := metric.WithAttributes(attribute.String("dialect", call))
	m.tasks.Add(ctx, 1, labels)
	m.items.Add(ctx, int64(items), labels)
}
