package collect

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/worker/agentlink"
)

// MaxFailedSpans bounds the spans of failures in a chunk of a big task, so that a task
// with 100,000 items has few spans. All hosts of a small task are traced; of a big task
// the first host of each chunk, and failed hosts up to this bound. The sampled flag of
// the trace context carries the decision to the agent and, with the result, back.
const MaxFailedSpans = 8

// resultTrace creates the spans of agents' operations from the times in their results,
// because most hosts cannot reach a trace collector.
type resultTrace struct {
	cfg *Config

	mu    sync.Mutex
	tasks map[procfleet.TaskID]*failedItems
}

// failedItems counts the spans of failed items of a task that is traced in part.
type failedItems struct {
	traced bool
	spans  map[int]int // number of spans, by chunk
}

// maxFailedTasks bounds the tasks with counted failures; beyond it all counts are
// reset.
const maxFailedTasks = 1024

// recorded creates the spans of messages whose results are stored. received is when they
// were removed from the inbox.
func (t *resultTrace) recorded(ctx context.Context, received time.Time, messages []*agentlink.Request) {
	if t.cfg.Tracer == nil {
		return
	}
	stored := time.Now()
	for _, m := range messages {
		found, sampled := tracecontext.Has(m.Msg.Header)
		if !found || !sampled && !t.failedOne(ctx, m) {
			continue
		}
		ctx := tracecontext.With(tracecontext.Extract(ctx, m.Msg.Header), true)
		AgentSpans(ctx, t.cfg.AgentTracer, m.Task, m.Results, sampled)
		_, span := tracecontext.Start(ctx, t.cfg.Tracer, "results record", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(received),
			trace.WithAttributes(tracecontext.KeyTask.String(string(m.Task)), tracecontext.KeyItems.Int(len(m.Results)),
				attribute.Int("procfleet.messages", len(messages))))
		span.End(trace.WithTimestamp(stored))
	}
}

// failedOne reports whether to trace a message of an untraced host because it reports a
// failure and the chunk's bound is not reached.
func (t *resultTrace) failedOne(ctx context.Context, m *agentlink.Request) bool {
	failure := func(r procfleet.Result) bool { return r.State().Failure() }
	at := slices.IndexFunc(m.Results, failure)
	if at < 0 {
		return false
	}
	t.mu.Lock()
	f := t.tasks[m.Task]
	t.mu.Unlock()
	if f == nil {
		f = t.load(ctx, m.Task)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	part := m.Results[at].Item / procfleet.ChunkItems
	if f == nil || !f.traced || f.spans[part] >= MaxFailedSpans {
		return false
	}
	f.spans[part]++
	return true
}

// load reads from the store whether a task is traced, because the trace header of an
// untraced item does not show it. It returns nil if the task cannot be read.
func (t *resultTrace) load(ctx context.Context, id procfleet.TaskID) *failedItems {
	ctx, cancel := t.cfg.Calls.WithTimeout(ctx)
	defer cancel()
	task, err := t.cfg.Store.Task(ctx, id)
	if err != nil {
		return nil
	}
	span := trace.SpanContextFromContext(tracecontext.FromText(ctx, task.Trace))
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.tasks) >= maxFailedTasks {
		clear(t.tasks)
	}
	f := &failedItems{traced: span.IsSampled(), spans: map[int]int{}}
	t.tasks[id] = f
	return f
}

// AgentSpans creates a span for each result, or only for failures unless all is set.
func AgentSpans(ctx context.Context, agents trace.Tracer, task procfleet.TaskID, results []procfleet.Result, all bool) {
	for i := range results {
		r := &results[i]
		state := r.State()
		if r.AcceptedAt.IsZero() || r.FinishedAt.IsZero() || !all && !state.Failure() {
			continue
		}
		_, span := tracecontext.Start(ctx, agents, "agent operate", trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(r.AcceptedAt),
			trace.WithAttributes(
				tracecontext.KeyTask.String(string(task)), attribute.Int("procfleet.item", r.Item), attribute.Int("procfleet.code", int(r.Code)), attribute.String("procfleet.reason", string(r.Reason)),
				tracecontext.KeyState.String(string(state)), attribute.String("procfleet.clock", "agent")))
		if !r.StartedAt.IsZero() {
			span.AddEvent("started", trace.WithTimestamp(r.StartedAt))
		}
		if state.Failure() {
			tracecontext.Fail(span, r.Message)
		}
		span.End(trace.WithTimestamp(r.FinishedAt))
	}
}
