// Package tracecontext transports the W3C trace context in NATS headers. It imports
// only the API of OpenTelemetry, so that agents can propagate traces without linking
// an SDK or an exporter.
package tracecontext

import (
	"context"
	"net/http"
	"strconv"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Inject writes the trace of ctx into h; without a trace it writes nothing.
func Inject(ctx context.Context, h nats.Header) {
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(http.Header(h)))
}

// Extract returns ctx with the trace in h, or ctx itself if h has no valid trace.
func Extract(ctx context.Context, h nats.Header) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(http.Header(h)))
}

// Text returns the trace of ctx as a traceparent, for storage outside of messages;
// "" without a trace.
func Text(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier.Get(traceparent)
}

// Has reports whether h contains a trace, and whether that trace is sampled. It is
// cheap enough to be called for every message.
func Has(h nats.Header) (found, sampled bool) {
	const length, flags = 55, 53 // version 00: the flags are the last two digits
	text := http.Header(h).Get(traceparent)
	if len(text) < length {
		return false, false
	}
	low, err := strconv.ParseUint(text[flags:length], 16, 8)
	return err == nil, err == nil && low&uint64(trace.FlagsSampled) != 0
}

// FromText returns ctx with the trace in text, a result of [Text].
func FromText(ctx context.Context, text string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: text})
}

const traceparent = "traceparent"
