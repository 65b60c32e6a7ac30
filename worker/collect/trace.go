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

// MaxFailedSpans bounds the spans of failures in a chunk of a big task. So spans of
// a task with 100,000 items stay few: all hosts of a small task are traced, of a
// bigger one the first of each chunk, and then those that failed. The decision
// travels to the agent as the sampled flag of the command's trace, and back with
// the result.
const MaxFailedSpans = 8

// resultTrace makes the spans of what agents did, from the times in their results:
// hosts usually reach no collector of traces.
type resultTrace struct {
	cfg *Config

	mu    sync.Mutex
	tasks map[procfleet.TaskID]*failedItems
}

// failedItems bounds the spans of failed items of a task that is not traced whole.
type failedItems struct {
	traced bool
	spans  map[int]int // by part of the task
}

// maxFailedTasks is how many tasks with failures are remembered; then their bounds
// start again.
const maxFailedTasks = 1024

// recorded makes the spans of messages whose results are stored; taken is when they
// were taken from the inbox.
func (t *resultTrace) recorded(ctx context.Context, taken time.Time, messages []*agentlink.Request) {
	if t.cfg.Tracer == nil {
		return
	}
	stored := time.Now()
	for _, m := range messages {
		there, sampled := tracecontext.Has(m.Msg.Header)
		if !there || !sampled && !t.failedOne(ctx, m) {
			continue
		}
		ctx := tracecontext.With(tracecontext.Extract(ctx, m.Msg.Header), true)
		AgentSpans(ctx, t.cfg.AgentTracer, m.Task, m.Results, sampled)
		_, span := tracecontext.Start(ctx, t.cfg.Tracer, "results record", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(taken),
			trace.WithAttributes(tracecontext.KeyTask.String(string(m.Task)), tracecontext.KeyItems.Int(len(m.Results)),
				attribute.Int("procfleet.messages", len(messages))))
		span.End(trace.WithTimestamp(stored))
	}
}

// failedOne reports whether a message of an untraced host is traced, because it
// reports a failure.
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

// load reads whether a task is traced; nil if it cannot be read. Messages of its
// untraced items do not differ from those of an untraced task.
func (t *resultTrace) load(ctx context.Context, id procfleet.TaskID) *failedItems {
	ctx, cancel := t.cfg.Link.Calls.WithTimeout(ctx)
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

// AgentSpans makes a span of each result, or of the failures alone.
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
