package tracecontext_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet/internal/tracecontext"
)

func sample(t *testing.T) (context.Context, trace.SpanContext) {
	t.Helper()
	id, err := trace.TraceIDFromHex("4bf92f3577b34da6a3ce929d0e0e4736")
	if err != nil {
		t.Fatal(err)
	}
	span := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: trace.SpanID{1, 2, 3}, TraceFlags: trace.FlagsSampled, Remote: true,
	})
	return trace.ContextWithSpanContext(t.Context(), span), span
}

func TestTraceSurvivesTheHeader(t *testing.T) {
	t.Parallel()
	ctx, want := sample(t)
	h := nats.Header{}
	tracecontext.Inject(ctx, h)
	got := trace.SpanContextFromContext(tracecontext.Extract(t.Context(), h))
	if !got.Equal(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTraceSurvivesAsText(t *testing.T) {
	t.Parallel()
	ctx, want := sample(t)
	got := trace.SpanContextFromContext(tracecontext.FromText(t.Context(), tracecontext.Text(ctx)))
	if !got.Equal(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWithoutTraceNothingIsWritten(t *testing.T) {
	t.Parallel()
	h := nats.Header{}
	tracecontext.Inject(t.Context(), h)
	if len(h) != 0 {
		t.Errorf("headers %v, want none", h)
	}
	if text := tracecontext.Text(t.Context()); text != "" {
		t.Errorf("text %q, want none", text)
	}
}

func TestUnreadableTraceIsIgnored(t *testing.T) {
	t.Parallel()
	ctx := tracecontext.Extract(t.Context(), nats.Header{"Traceparent": {"00-nonsense"}})
	if trace.SpanContextFromContext(ctx).IsValid() {
		t.Error("a trace was made from nonsense")
	}
}

// FuzzExtract reads arbitrary headers. An accepted trace context stays equal when it is written to
// headers or to text.
func FuzzExtract(f *testing.F) {
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-0102030000000000-01", "a=1,b=2")
	f.Add("cc-4bf92f3577b34da6a3ce929d0e0e4736-0102030000000000-01-what-the-future-will-be-like", "a=")
	f.Add("00-00000000000000000000000000000000-0102030000000000-0\x00", "\xff")
	f.Fuzz(func(t *testing.T, parent, state string) {
		h := nats.Header{"Traceparent": {parent}, "Tracestate": {state}}
		there, sampled := tracecontext.Has(h)
		ctx := tracecontext.Extract(t.Context(), h)
		span := trace.SpanContextFromContext(ctx)
		if !span.IsValid() {
			return
		}
		if !there || sampled != span.IsSampled() {
			t.Errorf("a trace is there: %v, sampled: %v; extracted is %v", there, sampled, span)
		}
		again := nats.Header{}
		tracecontext.Inject(ctx, again)
		if got := trace.SpanContextFromContext(tracecontext.Extract(t.Context(), again)); !got.Equal(span) {
			t.Errorf("got %v, want %v", got, span)
		}
		text := trace.SpanContextFromContext(tracecontext.FromText(t.Context(), tracecontext.Text(ctx)))
		if text.TraceID() != span.TraceID() || text.SpanID() != span.SpanID() || text.IsSampled() != span.IsSampled() {
			t.Errorf("as text %v, want %v", text, span)
		}
	})
}
