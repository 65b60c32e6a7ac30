package telemetry

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// limiter passes spans to the SDK's batcher while the batcher's queue has capacity,
// and counts dropped spans, which the batcher does not. Ending a span never
// blocks.
type limiter struct {
	sdktrace.SpanProcessor // batcher of the SDK
	log                    logrus.FieldLogger

	waiting  atomic.Int64 // spans passed to the batcher and not sent yet
	silent   atomic.Int64 // time before which nothing is logged, Unix nanoseconds
	lost     atomic.Int64 // spans lost since the last log line
	exported metric.Int64Counter
	dropped  metric.Int64Counter
}

// Labels for the causes of dropped spans.
var (
	droppedFull  = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", "full")))
	droppedError = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", "refused")))
)

func newLimiter(exporter sdktrace.SpanExporter, cfg *TraceConfig) (*limiter, error) {
	g := &limiter{log: cfg.Log}
	var err, err2 error
	g.exported, err = cfg.Meter.Int64Counter("procfleet_trace_exported_spans",
		metric.WithDescription("Spans that the collector accepted."))
	g.dropped, err2 = cfg.Meter.Int64Counter("procfleet_trace_dropped_spans",
		metric.WithDescription("Lost spans, by reason: the queue was full (full), or the collector was unavailable or rejected them (refused)."))
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("trace metrics: %w", err)
	}
	g.exported.Add(context.Background(), 0)
	g.dropped.Add(context.Background(), 0, droppedFull)
	g.dropped.Add(context.Background(), 0, droppedError)
	g.SpanProcessor = sdktrace.NewBatchSpanProcessor(&sender{exporter, g}, sdktrace.WithMaxQueueSize(maxQueued),
		sdktrace.WithMaxExportBatchSize(maxBatch), sdktrace.WithBatchTimeout(exportPause), sdktrace.WithExportTimeout(exportTimeout))
	return g, nil
}

// OnEnd implements [sdktrace.SpanProcessor].
func (g *limiter) OnEnd(span sdktrace.ReadOnlySpan) {
	if !span.SpanContext().IsSampled() {
		return
	}
	if g.waiting.Add(1) > maxQueued {
		g.waiting.Add(-1)
		g.drop(1, droppedFull, nil)
		return
	}
	g.SpanProcessor.OnEnd(span)
}

// sender sends the batcher's spans to the collector and counts them.
type sender struct {
	sdktrace.SpanExporter
	limiter *limiter
}

// ExportSpans implements [sdktrace.SpanExporter].
func (s *sender) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := s.SpanExporter.ExportSpans(ctx, spans)
	s.limiter.waiting.Add(-int64(len(spans)))
	lost := 0
	if err != nil {
		lost = len(spans)
		if partial, ok := errors.AsType[*partialError](err); ok {
			lost = int(min(max(partial.rejected, 0), int64(lost)))
		}
		s.limiter.drop(lost, droppedError, err)
	}
	s.limiter.exported.Add(context.WithoutCancel(ctx), int64(len(spans)-lost))
	return nil // drop has logged the error; the batcher would log it again
}

func (g *limiter) drop(n int, why metric.AddOption, cause error) {
	g.dropped.Add(context.Background(), int64(n), why)
	g.lost.Add(int64(n))
	g.logFailure(cause)
}

// quiet is the minimum interval between two log lines.
const quiet = time.Minute

// logFailure logs a failed export, at most once per [quiet].
func (g *limiter) logFailure(cause error) {
	now := time.Now().UnixNano()
	until := g.silent.Load()
	if now < until || !g.silent.CompareAndSwap(until, now+int64(quiet)) {
		return
	}
	log := g.log.WithField("dropped", g.lost.Swap(0))
	if cause != nil {
		log = log.WithError(cause)
	}
	log.Warn("trace export failed")
}
