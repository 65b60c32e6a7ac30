package dispatcher

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// trace starts the request's span. A request that creates a task starts a new trace if
// its caller has none. Other requests have a span only within their caller's trace,
// because a caller that polls would otherwise start a trace every second.
func (e *exchange) trace() {
	ctx := propagation.TraceContext{}.Extract(e.r.Context(), propagation.HeaderCarrier(e.r.Header))
	kind, name := trace.WithSpanKind(trace.SpanKindServer), "HTTP "+e.name()
	creates := false
	if e.call != nil {
		_, creates = e.call.Endpoint.(dialect.Accept)
	}
	if creates {
		ctx, e.span = e.api.cfg.Tracer.Start(ctx, name, kind)
	} else {
		ctx, e.span = tracecontext.Start(ctx, e.api.cfg.Tracer, name, kind)
	}
	e.r = e.r.WithContext(ctx)
}

// traced starts the span of an acceptance, which is the parent of all later spans of
// the task. The caller ends the span with done. A published submission without a trace
// starts its trace here.
func (s *submitter) traced(ctx context.Context, sub *procfleet.Submission) (_ context.Context, done func(*procfleet.Task, error)) {
	ctx, span := s.cfg.Tracer.Start(ctx, "task accept")
	if !span.IsRecording() {
		return ctx, func(*procfleet.Task, error) {}
	}
	return ctx, func(task *procfleet.Task, err error) {
		span.SetAttributes(tracecontext.KeyItems.Int(sub.Items()))
		if task.ID != "" {
			span.SetAttributes(tracecontext.KeyTask.String(string(task.ID)), tracecontext.KeyLane.String(string(task.Lane)),
				tracecontext.KeyChunks.Int(task.Chunks))
		}
		tracecontext.End(span, err)
	}
}

// instrumentedQueue records the duration and a span of each publication. The messages
// carry the span's context, so that the spans of workers are its children.
type instrumentedQueue struct {
	Queue
	metrics *dispatcherMetrics
	tracer  trace.Tracer
}

func (q *instrumentedQueue) PublishChunks(ctx context.Context, refs []bus.ChunkRef, round string) ([]uint64, error) {
	began := time.Now()
	ctx, span := tracecontext.Start(ctx, q.tracer, "chunks publish", trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(tracecontext.KeyChunks.Int(len(refs))))
	sequences, err := q.Queue.PublishChunks(ctx, refs, round)
	q.metrics.publish.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(attribute.Bool("ok", err == nil)))
	tracecontext.End(span, err)
	return sequences, err
}
