// Package instrumented measures and traces the calls that a role makes to its
// store.
package instrumented

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
)

// Full is a task store with its catalog.
type Full interface {
	taskstore.Store
	catalog.Store
}

// Store is a store whose calls are measured and, in a recorded trace, spans.
// Calls of the sweep's bookkeeping and of the clock are neither.
type Store struct {
	Full
	seconds metric.Float64Histogram
	tracer  trace.Tracer
	labels  sync.Map // name of a call → metric.MeasurementOption: building one takes longer than recording
}

// New returns store with the telemetry of a role, "dispatcher" or "worker". A
// nil tracer makes no spans.
func New(store Full, role string, meter metric.Meter, tracer trace.Tracer) (*Store, error) {
	seconds, err := meter.Float64Histogram("procfleet_"+role+"_store_seconds",
		metric.WithDescription("Time of calls to the task store."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	if err != nil {
		return nil, fmt.Errorf("metrics of the store: %w", err)
	}
	return &Store{Full: store, seconds: seconds, tracer: tracer}, nil
}

// call runs do, one call to the store. name is its label and the name of its span.
func (s *Store) call(ctx context.Context, name string, do func(context.Context) error) error {
	began := time.Now()
	ctx, span := tracecontext.Start(ctx, s.tracer, "store "+name, trace.WithSpanKind(trace.SpanKindClient))
	err := do(ctx)
	s.seconds.Record(ctx, time.Since(began).Seconds(), s.label(name))
	tracecontext.End(span, err)
	return err
}

func (s *Store) label(call string) metric.MeasurementOption {
	label, ok := s.labels.Load(call)
	if !ok {
		label, _ = s.labels.LoadOrStore(call, metric.WithAttributeSet(attribute.NewSet(attribute.String("call", call))))
	}
	return label.(metric.MeasurementOption) //nolint:forcetypeassert // nothing else is stored
}

// one is [Store.call] for a call that returns one value.
func one[T any](ctx context.Context, s *Store, name string, do func(context.Context) (T, error)) (v T, err error) {
	err = s.call(ctx, name, func(ctx context.Context) (err error) {
		v, err = do(ctx)
		return err
	})
	return v, err
}

// two is [Store.call] for a call that returns two values.
func two[T, U any](ctx context.Context, s *Store, name string, do func(context.Context) (T, U, error)) (v T, w U, err error) {
	err = s.call(ctx, name, func(ctx context.Context) (err error) {
		v, w, err = do(ctx)
		return err
	})
	return v, w, err
}
