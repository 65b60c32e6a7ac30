package stores

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet/internal/tracecontext"
)

// Instrumented records the duration of each call to the wrapped store, and a span if ctx
// belongs to a recorded trace. Sweep bookkeeping and clock calls are not instrumented.
type Instrumented struct {
	Full
	seconds metric.Float64Histogram
	tracer  trace.Tracer
	labels  sync.Map // call name → metric.MeasurementOption, cached because building one is slower than recording
}

// Instrument wraps store and names its metric after role, "dispatcher" or "worker". If tracer is
// nil, no spans are recorded.
func Instrument(store Full, role string, meter metric.Meter, tracer trace.Tracer) (*Instrumented, error) {
	seconds, err := meter.Float64Histogram("procfleet_"+role+"_store_seconds",
		metric.WithDescription("Time of calls to the task store."), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5))
	if err != nil {
		return nil, fmt.Errorf("metrics of the store: %w", err)
	}
	return &Instrumented{Full: store, seconds: seconds, tracer: tracer}, nil
}

// call runs do, which makes one call to the store. name is the value of the metric label
// and, after "store ", the name of the span.
func (s *Instrumented) call(ctx context.Context, name string, do func(context.Context) error) error {
	began := time.Now()
	ctx, span := tracecontext.Start(ctx, s.tracer, "store "+name, trace.WithSpanKind(trace.SpanKindClient))
	err := do(ctx)
	s.seconds.Record(ctx, time.Since(began).Seconds(), s.label(name))
	tracecontext.End(span, err)
	return err
}

func (s *Instrumented) label(call string) metric.MeasurementOption {
	label, ok := s.labels.Load(call)
	if !ok {
		label, _ = s.labels.LoadOrStore(call, metric.WithAttributeSet(attribute.NewSet(attribute.String("call", call))))
	}
	return label.(metric.MeasurementOption) //nolint:forcetypeassert // labels stores no other type
}

// one is [Instrumented.call] for a function that returns one value and an error.
func one[T any](ctx context.Context, s *Instrumented, name string, do func(context.Context) (T, error)) (v T, err error) {
	err = s.call(ctx, name, func(ctx context.Context) (err error) {
		v, err = do(ctx)
		return err
	})
	return v, err
}

// two is [Instrumented.call] for a function that returns two values and an error.
func two[T, U any](ctx context.Context, s *Instrumented, name string, do func(context.Context) (T, U, error)) (v T, w U, err error) {
	err = s.call(ctx, name, func(ctx context.Context) (err error) {
		v, w, err = do(ctx)
		return err
	})
	return v, w, err
}
