// Package tracecontext carries the W3C trace context through NATS headers. It
// uses only the API half of OpenTelemetry, so that agents can pass a trace on
// without linking an SDK or an exporter.
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

// Extract returns ctx with the trace that h carries, or ctx itself if h
// carries none that can be read.
func Extract(ctx context.Context, h nats.Header) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(http.Header(h)))
}

// Text returns the trace of ctx as one traceparent line, to store it beyond a
// message, and "" without a trace.
func Text(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier.Get(traceparent)
}

// Has reports whether h carries a trace, and whether that trace is sampled.
// It costs little, so that it can be asked of every message.
func Has(h nats.Header) (there, sampled bool) {
	const length, flags = 55, 53 // of version 00: the flags are the last two digits
	text := http.Header(h).Get(traceparent)
	if len(text) < length {
		return false, false
	}
	low, err := strconv.ParseUint(text[flags:length], 16, 8)
	return err == nil, err == nil && low&uint64(trace.FlagsSampled) != 0
}

// FromText returns ctx with the trace that [Text] wrote.
func FromText(ctx context.Context, text string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: text})
}

const traceparent = "traceparent"
