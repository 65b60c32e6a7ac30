package deliver

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/worker/collect"
)

// Attributes of spans.
const (
	keyTries   = attribute.Key("procfleet.tries")
	keyOutcome = attribute.Key("procfleet.outcome")
)

func (d *Deliverer) traceChunk(ctx context.Context, ref bus.ChunkRef, delivered uint64) (context.Context, trace.Span) {
	ctx, span := tracecontext.Start(ctx, d.cfg.Tracer, "chunk deliver", trace.WithSpanKind(trace.SpanKindConsumer))
	if span.IsRecording() {
		span.SetAttributes(tracecontext.KeyTask.String(string(ref.Task)), tracecontext.KeyChunk.Int(ref.Chunk),
			tracecontext.KeyLane.String(string(ref.Lane)), tracecontext.KeyCloud.Int64(int64(ref.Cloud)), attribute.Int64("procfleet.attempt", int64(delivered))) //nolint:gosec // delivery counts are small
	}
	return ctx, span
}

// requestTrace is the trace of one delivery: the spans of its traced hosts.
type requestTrace struct {
	chunk  trace.Span // span of the delivery
	tracer trace.Tracer
	agents trace.Tracer // creates spans of agents' operations
	task   procfleet.TaskID
	small  bool
	rest   nats.Header // header of untraced commands; nil without a trace
	first  nats.Header // header of traced commands while this worker records no spans
	begun  time.Time
	spans  map[int]trace.Span // spans of hosts with open requests, by index
	failed int
}

func newRequestTrace(ctx context.Context, tracer, agents trace.Tracer, task *procfleet.Task) *requestTrace {
	t := &requestTrace{
		chunk: trace.SpanFromContext(ctx), tracer: tracer, agents: agents,
		task: task.ID, small: task.Lane == procfleet.LaneSmall, begun: time.Now(),
	}
	t.first = headerOf(ctx)
	t.rest = t.first
	if !t.small {
		t.rest = headerOf(tracecontext.With(ctx, false))
	}
	return t
}

func headerOf(ctx context.Context) nats.Header {
	header := nats.Header{}
	if tracecontext.Inject(ctx, header); len(header) == 0 {
		return nil
	}
	return header
}

// header returns the header of a command. The first command starts the host's span.
func (t *requestTrace) header(h *hostRequest, items []procfleet.Item) nats.Header {
	if !t.small && h.index > 0 {
		return t.rest
	}
	if !t.chunk.IsRecording() {
		return t.first
	}
	span := t.spans[h.index]
	if span == nil {
		span = t.start(h, items[h.todo[0]].Action, time.Now())
		if t.spans == nil {
			t.spans = map[int]trace.Span{}
		}
		t.spans[h.index] = span
	}
	return headerOf(below(span))
}

func (t *requestTrace) start(h *hostRequest, action procfleet.Action, at time.Time) trace.Span {
	_, span := tracecontext.Start(below(t.chunk), t.tracer, "host ask", trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(at),
		trace.WithAttributes(attribute.String("procfleet.host", h.name), tracecontext.KeyCloud.Int64(int64(h.host.Cloud)),
			attribute.String("procfleet.action", string(action)), tracecontext.KeyItems.Int(len(h.todo))))
	return span
}

// below returns a context for children of span. The context is never canceled.
func below(span trace.Span) context.Context { return trace.ContextWithSpan(context.Background(), span) }

// operated creates the spans of results in a reply. An untraced host gets a span if one
// of the results is a failure.
func (t *requestTrace) operated(h *hostRequest, action procfleet.Action, results []procfleet.Result) {
	if !t.chunk.IsRecording() || len(results) == 0 {
		return
	}
	if span := t.spans[h.index]; span != nil {
		collect.AgentSpans(below(span), t.agents, t.task, results, true)
		return
	}
	failure := func(r procfleet.Result) bool { return r.State().Failure() }
	at := slices.IndexFunc(results, failure)
	if at < 0 || t.failed >= collect.MaxFailedSpans {
		return
	}
	t.failed++
	span := t.start(h, action, t.begun)
	collect.AgentSpans(below(span), t.agents, t.task, results, false)
	span.SetAttributes(tracecontext.KeyItems.Int(len(results)))
	t.finish(h, span, "answered")
}

func (t *requestTrace) settled(h *hostRequest) {
	if span := t.spans[h.index]; span != nil {
		t.finish(h, span, "answered")
	}
}

func (t *requestTrace) finish(h *hostRequest, span trace.Span, outcome string) {
	span.SetAttributes(keyTries.Int(h.try), keyOutcome.String(outcome))
	span.End()
	delete(t.spans, h.index)
}

// gaveUp ends the span of a host whose items were ended by the server. An untraced host
// gets a span for this.
func (t *requestTrace) gaveUp(h *hostRequest, action procfleet.Action, reason procfleet.Reason, message string) {
	span := t.spans[h.index]
	if span == nil {
		if !t.chunk.IsRecording() || t.failed >= collect.MaxFailedSpans {
			return
		}
		span = t.start(h, action, t.begun)
	}
	t.failed++
	span.SetAttributes(attribute.String("procfleet.reason", string(reason)))
	tracecontext.Fail(span, message)
	t.finish(h, span, string(reason))
}

// end ends the open spans of a delivery that was aborted.
func (t *requestTrace) end() {
	for _, span := range t.spans {
		span.SetAttributes(keyOutcome.String("broken_off"))
		span.End()
	}
	t.spans = nil
}
