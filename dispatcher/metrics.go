package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// dispatcherMetrics holds the metrics of a dispatcher. Hosts, tasks and callers are
// never labels.
type dispatcherMetrics struct {
	requests metric.Float64Histogram
	tasks    metric.Int64Counter
	items    metric.Int64Counter
	publish  metric.Float64Histogram
	// submissions counts published submissions by their outcome.
	submissions metric.Int64Counter
	// refusedEvents counts agent events that were discarded because signature
	// verification failed.
	refusedEvents metric.Int64Counter

	dialectLabels labels[string]        // by call of a dialect
	requestLabels labels[requestLabels] // by call of a dialect and status
	publishLabels labels[bool]          // by success
}

type requestLabels struct {
	call   string
	status int
}

// labels caches the label sets of a metric, which are few, because creating one takes
// longer than recording a value.
type labels[K comparable] struct {
	mu    sync.RWMutex
	known map[K]metric.MeasurementOption
}

// of returns the labels of a key. It calls made only for a new key.
func (l *labels[K]) of(key K, made func() []attribute.KeyValue) metric.MeasurementOption {
	l.mu.RLock()
	option := l.known[key]
	l.mu.RUnlock()
	if option != nil {
		return option
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = make(map[K]metric.MeasurementOption)
	}
	l.known[key] = metric.WithAttributeSet(attribute.NewSet(made()...))
	return l.known[key]
}

func newMetrics(meter metric.Meter) (*dispatcherMetrics, error) {
	var m dispatcherMetrics
	var errs [6]error
	m.requests, errs[0] = meter.Float64Histogram("procfleet_dispatcher_request_seconds",
		metric.WithDescription("Time from a request's header to the end of its answer."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30))
	m.tasks, errs[1] = meter.Int64Counter("procfleet_dispatcher_accepted_tasks",
		metric.WithDescription("Requests answered with the id of a task, repeats included."))
	m.items, errs[2] = meter.Int64Counter("procfleet_dispatcher_accepted_items",
		metric.WithDescription("Processes on hosts in those tasks."))
	m.publish, errs[3] = meter.Float64Histogram("procfleet_dispatcher_publish_seconds",
		metric.WithDescription("Time until JetStream had acknowledged the chunks of a task."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	m.submissions, errs[4] = meter.Int64Counter("procfleet_dispatcher_submissions",
		metric.WithDescription("Published submissions, by what became of them; put_off is counted each time."))
	m.refusedEvents, errs[5] = meter.Int64Counter("procfleet_dispatcher_events_refused",
		metric.WithDescription("Events that are not known to be from the hosts that they name, by reason, each time they are read."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("dispatcher: metrics: %w", err)
	}
	return &m, nil
}

func (m *dispatcherMetrics) publishTime(ctx context.Context, took time.Duration, err error) {
	ok := err == nil
	m.publish.Record(ctx, took.Seconds(), m.publishLabels.of(ok, func() []attribute.KeyValue {
		return []attribute.KeyValue{attribute.Bool("ok", ok)}
	}))
}

// eventsRefused counts agent events that failed verification.
func (m *dispatcherMetrics) eventsRefused(ctx context.Context, byReason map[string]int) {
	for reason, n := range byReason {
		m.refusedEvents.Add(ctx, int64(n), metric.WithAttributes(attribute.String("reason", reason)))
	}
}

func (m *dispatcherMetrics) submitted(ctx context.Context, o outcome) {
	m.submissions.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", string(o))))
}

func (m *dispatcherMetrics) request(ctx context.Context, call string, status int, took time.Duration) {
	m.requests.Record(ctx, took.Seconds(), m.requestLabels.of(requestLabels{call, status}, func() []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("dialect", call), attribute.String("status", strconv.Itoa(status))}
	}))
}

func (m *dispatcherMetrics) accepted(ctx context.Context, call string, items int) {
	labels := m.dialectLabels.of(call, func() []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("dialect", call)}
	})
	m.tasks.Add(ctx, 1, labels)
	m.items.Add(ctx, int64(items), labels)
}

// watchMetrics are the metrics of watchers.
type watchMetrics struct {
	present metric.Int64UpDownCounter
	watched metric.Int64UpDownCounter
	dropped metric.Int64Counter
}

func newWatchMetrics(meter metric.Meter) (*watchMetrics, error) {
	var m watchMetrics
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
	m.watchers(0) // exports the gauge before the first watcher
	m.topics(0)
	m.dropped.Add(context.Background(), 0)
	return &m, nil
}

func (m *watchMetrics) watchers(n int64) { m.present.Add(context.Background(), n) }

func (m *watchMetrics) topics(n int64) { m.watched.Add(context.Background(), n) }

func (m *watchMetrics) drop(ctx context.Context) { m.dropped.Add(ctx, 1) }
