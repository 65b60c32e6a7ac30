package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet/dispatcher/webhook"
)

// dispatcherMetrics holds the metrics of a dispatcher. Hosts, tasks and callers are
// never labels.
type dispatcherMetrics struct {
	requests      metric.Float64Histogram
	tasks         metric.Int64Counter
	items         metric.Int64Counter
	publish       metric.Float64Histogram
	submissions   metric.Int64Counter
	refusedEvents metric.Int64Counter
	watchers      metric.Int64UpDownCounter
	watchedTasks  metric.Int64UpDownCounter
	slowWatchers  metric.Int64Counter
	webhooks      metric.Int64Counter
	failing       metric.Int64UpDownCounter
}

func newMetrics(meter metric.Meter) (*dispatcherMetrics, error) {
	var m dispatcherMetrics
	var errs [11]error
	m.requests, errs[0] = meter.Float64Histogram("procfleet_dispatcher_request_seconds",
		metric.WithDescription("Time from the header of an HTTP request to the end of its response."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30))
	m.tasks, errs[1] = meter.Int64Counter("procfleet_dispatcher_accepted_tasks",
		metric.WithDescription("Requests that created a task, or repeated a request that did."))
	m.items, errs[2] = meter.Int64Counter("procfleet_dispatcher_accepted_items",
		metric.WithDescription("Items (processes on hosts) of accepted tasks."))
	m.publish, errs[3] = meter.Float64Histogram("procfleet_dispatcher_publish_seconds",
		metric.WithDescription("Time until JetStream acknowledges the chunks of a task."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	m.submissions, errs[4] = meter.Int64Counter("procfleet_dispatcher_submissions",
		metric.WithDescription("Deliveries of published submissions, by outcome: accepted, failed or put_off."))
	m.refusedEvents, errs[5] = meter.Int64Counter("procfleet_dispatcher_events_refused",
		metric.WithDescription("Agent events discarded because signature verification failed, by reason, counted at each read."))
	m.watchers, errs[6] = meter.Int64UpDownCounter("procfleet_dispatcher_watchers",
		metric.WithDescription("Open streams of task events."))
	m.watchedTasks, errs[7] = meter.Int64UpDownCounter("procfleet_dispatcher_watched_tasks",
		metric.WithDescription("Tasks with open streams of events."))
	m.slowWatchers, errs[8] = meter.Int64Counter("procfleet_dispatcher_dropped_watchers",
		metric.WithDescription("Streams of task events closed because the watcher read too slowly."))
	m.webhooks, errs[9] = meter.Int64Counter("procfleet_dispatcher_webhook_attempts",
		metric.WithDescription("Attempts to deliver an event to a webhook, by outcome: ok, failed, refused or dead."))
	m.failing, errs[10] = meter.Int64UpDownCounter("procfleet_dispatcher_failing_webhooks",
		metric.WithDescription("Webhooks to which this dispatcher delivers whose last attempt failed."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("dispatcher: metrics: %w", err)
	}
	ctx := context.Background()
	m.watchers.Add(ctx, 0) // exports the values before the first watcher
	m.watchedTasks.Add(ctx, 0)
	m.slowWatchers.Add(ctx, 0)
	m.failing.Add(ctx, 0)
	for _, outcome := range webhook.Outcomes() {
		m.webhook(outcome, 0)
	}
	return &m, nil
}

func (m *dispatcherMetrics) request(ctx context.Context, call string, status int, took time.Duration) {
	m.requests.Record(ctx, took.Seconds(), metric.WithAttributes(
		attribute.String("dialect", call), attribute.String("status", strconv.Itoa(status))))
}

func (m *dispatcherMetrics) accepted(ctx context.Context, call string, items int) {
	labels := metric.WithAttributes(attribute.String("dialect", call))
	m.tasks.Add(ctx, 1, labels)
	m.items.Add(ctx, int64(items), labels)
}

func (m *dispatcherMetrics) webhook(outcome string, n int64) {
	m.webhooks.Add(context.Background(), n, metric.WithAttributes(attribute.String("outcome", outcome)))
}

func (m *dispatcherMetrics) failingWebhook(change int64) { m.failing.Add(context.Background(), change) }
