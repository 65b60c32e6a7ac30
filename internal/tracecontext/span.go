package tracecontext

import (
	"context"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Start begins a span if the trace of ctx is sampled; otherwise it returns ctx and a
// span that does nothing. So background work (sweeps, presence, queries) creates no
// traces.
func Start(ctx context.Context, tracer trace.Tracer, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if tracer == nil || !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, off
	}
	return tracer.Start(ctx, name, opts...)
}

// off is a span that is not recorded.
var off = trace.SpanFromContext(context.Background())

// End ends a span, and marks it as failed if err is not nil.
func End(span trace.Span, err error) {
	if err != nil {
		Fail(span, err.Error())
	}
	span.End()
}

// Fail marks a span as failed; why may be untrusted text of any length.
func Fail(span trace.Span, why string) {
	if len(why) > maxWhy {
		why = why[:maxWhy]
	}
	span.SetStatus(codes.Error, why)
}

// maxWhy is the maximum size of a failure's description in bytes. The exporter
// repairs UTF-8 that is cut within a character.
const maxWhy = 512

// With returns ctx with the sampled flag of its trace set to sampled, or ctx itself if
// it has no trace.
func With(ctx context.Context, sampled bool) context.Context {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() || span.IsSampled() == sampled {
		return ctx
	}
	return trace.ContextWithSpanContext(ctx, span.WithTraceFlags(span.TraceFlags().WithSampled(sampled)))
}

// Log returns a logger that adds the trace of ctx as trace_id to its lines, or log
// itself if ctx has no trace.
func Log(ctx context.Context, log logrus.FieldLogger) logrus.FieldLogger {
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		return log.WithField("trace_id", span.TraceID().String())
	}
	return log
}

// Attributes of spans of several roles. Spans may contain hosts and tasks; labels of
// metrics may not.
const (
	KeyTask   = attribute.Key("procfleet.task")
	KeyItems  = attribute.Key("procfleet.items")
	KeyChunks = attribute.Key("procfleet.chunks")
	KeyChunk  = attribute.Key("procfleet.chunk")
	KeyLane   = attribute.Key("procfleet.lane")
	KeyCloud  = attribute.Key("procfleet.cloud")
	KeyState  = attribute.Key("procfleet.state")
)
