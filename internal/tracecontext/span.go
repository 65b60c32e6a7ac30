package tracecontext

import (
	"context"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Start begins a span of a trace that is recorded already; in every other
// context it returns ctx itself and a span that does nothing. What runs by
// itself (sweeps, presence, queries) so makes no traces of its own.
func Start(ctx context.Context, tracer trace.Tracer, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if tracer == nil || !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, off
	}
	return tracer.Start(ctx, name, opts...)
}

// off is the span of a trace that is not recorded.
var off = trace.SpanFromContext(context.Background())

// End ends a span, as failed if err is not nil.
func End(span trace.Span, err error) {
	if err != nil {
		Fail(span, err.Error())
	}
	span.End()
}

// Fail marks a span as failed; why may be foreign text of any length.
func Fail(span trace.Span, why string) {
	if len(why) > maxWhy {
		why = why[:maxWhy]
	}
	span.SetStatus(codes.Error, why)
}

// maxWhy bounds the description of a failure, in bytes. A cut in the middle
// of a character is the exporter's to mend.
const maxWhy = 512

// With returns ctx with a trace whose sampled flag is as given; ctx itself
// without a trace.
func With(ctx context.Context, sampled bool) context.Context {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() || span.IsSampled() == sampled {
		return ctx
	}
	return trace.ContextWithSpanContext(ctx, span.WithTraceFlags(span.TraceFlags().WithSampled(sampled)))
}

// Log returns a logger whose lines carry the trace of ctx as trace_id; log
// itself without a trace.
func Log(ctx context.Context, log logrus.FieldLogger) logrus.FieldLogger {
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		return log.WithField("trace_id", span.TraceID().String())
	}
	return log
}

// Attributes of spans that more than one role sets. Spans may name hosts and
// tasks; labels of metrics may not.
const (
	KeyTask   = attribute.Key("procfleet.task")
	KeyItems  = attribute.Key("procfleet.items")
	KeyChunks = attribute.Key("procfleet.chunks")
	KeyChunk  = attribute.Key("procfleet.chunk")
	KeyLane   = attribute.Key("procfleet.lane")
	KeyCloud  = attribute.Key("procfleet.cloud")
	KeyState  = attribute.Key("procfleet.state")
)
