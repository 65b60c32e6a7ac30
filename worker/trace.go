package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// How spans of a task with 100,000 items stay few: all hosts of a small task
// are traced, of a bigger one the first of each chunk, and then those that
// failed, up to maxFailedSpans in each chunk. The decision travels to the
// agent as the sampled flag of the command's trace, and back with the result.
const maxFailedSpans = 8

// Attributes of a worker's spans.
const (
	keyHost    = attribute.Key("procfleet.host")
	keyAction  = attribute.Key("procfleet.action")
	keyItem    = attribute.Key("procfleet.item")
	keyCode    = attribute.Key("procfleet.code")
	keyReason  = attribute.Key("procfleet.reason")
	keyTries   = attribute.Key("procfleet.tries")
	keyOutcome = attribute.Key("procfleet.outcome")
	keyAttempt = attribute.Key("procfleet.attempt")
	keyFailed  = attribute.Key("procfleet.failed")
	// keyClock says whose clock the times of a span are by, if not the
	// exporting process's.
	keyClock = attribute.Key("procfleet.clock")
	// keyMessages is how many messages shared one call to the store.
	keyMessages = attribute.Key("procfleet.messages")
)

// traceChunk begins the span of one delivery of a chunk.
func (d *deliverer) traceChunk(ctx context.Context, ref bus.ChunkRef, delivered uint64) (context.Context, trace.Span) {
	ctx, span := tracecontext.Start(ctx, d.tracer, "chunk deliver", trace.WithSpanKind(trace.SpanKindConsumer))
	if span.IsRecording() {
		span.SetAttributes(tracecontext.KeyTask.String(string(ref.Task)), tracecontext.KeyChunk.Int(ref.Chunk),
			tracecontext.KeyLane.String(string(ref.Lane)), tracecontext.KeyCloud.Int64(int64(ref.Cloud)), keyAttempt.Int64(int64(delivered))) //nolint:gosec // a number of deliveries
	}
	return ctx, span
}

// askTrace is the trace of one delivery: which of its hosts are followed, and
// their spans.
type askTrace struct {
	chunk  trace.Span // of the delivery
	tracer trace.Tracer
	agents trace.Tracer // of what agents did
	task   procfleet.TaskID
	small  bool
	rest   nats.Header // of commands that are not followed; nil without a trace
	first  nats.Header // the same for those that are, where this worker records nothing
	begun  time.Time
	spans  map[int]trace.Span // of hosts that were asked and have not answered, by index
	failed int
}

func newAskTrace(ctx context.Context, tracer, agents trace.Tracer, task *procfleet.Task) *askTrace {
	t := &askTrace{
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

// recording reports whether hosts get spans at all.
func (t *askTrace) recording() bool { return t.chunk.IsRecording() }

// asking returns the header for a command to a host, whose span begins with
// the first one.
func (t *askTrace) asking(h *hostAsk, items []procfleet.Item) nats.Header {
	if !t.small && h.index > 0 {
		return t.rest
	}
	if !t.recording() {
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

func (t *askTrace) start(h *hostAsk, action procfleet.Action, at time.Time) trace.Span {
	_, span := tracecontext.Start(below(t.chunk), t.tracer, "host ask", trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(at),
		trace.WithAttributes(keyHost.String(h.name), tracecontext.KeyCloud.Int64(int64(h.host.Cloud)),
			keyAction.String(string(action)), tracecontext.KeyItems.Int(len(h.todo))))
	return span
}

// below is a context for what hangs below a span; nothing in it ends.
func below(span trace.Span) context.Context { return trace.ContextWithSpan(context.Background(), span) }

// operated makes the spans of results that came with an answer. A host that is
// not followed gets its own for the first failure among them.
func (t *askTrace) operated(h *hostAsk, action procfleet.Action, results []procfleet.Result) {
	if !t.recording() || len(results) == 0 {
		return
	}
	if span := t.spans[h.index]; span != nil {
		agentSpans(below(span), t.agents, t.task, results, true)
		return
	}
	failure := func(r procfleet.Result) bool { return r.State().Failure() }
	at := slices.IndexFunc(results, failure)
	if at < 0 || t.failed >= maxFailedSpans {
		return
	}
	t.failed++
	span := t.start(h, action, t.begun)
	agentSpans(below(span), t.agents, t.task, results, false)
	span.SetAttributes(tracecontext.KeyItems.Int(len(results)), keyTries.Int(h.try), keyOutcome.String("answered"))
	span.End()
}

// settled ends the span of a host that has answered for everything.
func (t *askTrace) settled(h *hostAsk) {
	if span := t.spans[h.index]; span != nil {
		span.SetAttributes(keyTries.Int(h.try), keyOutcome.String("answered"))
		span.End()
		delete(t.spans, h.index)
	}
}

// gaveUp ends the span of a host that did not do what it was asked for. One
// that was not followed until now gets its span all the same.
func (t *askTrace) gaveUp(h *hostAsk, action procfleet.Action, reason procfleet.Reason, message string) {
	span := t.spans[h.index]
	if span == nil {
		if !t.recording() || t.failed >= maxFailedSpans {
			return
		}
		span = t.start(h, action, t.begun)
	}
	t.failed++
	span.SetAttributes(keyTries.Int(h.try), keyOutcome.String(string(reason)), keyReason.String(string(reason)))
	tracecontext.Fail(span, message)
	span.End()
	delete(t.spans, h.index)
}

// end ends what is left of a delivery that was broken off.
func (t *askTrace) end() {
	for _, span := range t.spans {
		span.SetAttributes(keyOutcome.String("broken_off"))
		span.End()
	}
	t.spans = nil
}

// resultTrace makes the spans of what agents did, from their own timelines:
// hosts usually reach no collector.
type resultTrace struct {
	tracer, agents trace.Tracer // nil records nothing
	store          Store
	timing         *Timing

	mu    sync.Mutex
	tasks map[procfleet.TaskID]*failedItems
}

func newResultTrace(cfg *Config) *resultTrace {
	return &resultTrace{
		tracer: cfg.Tracer, agents: cfg.AgentTracer, store: cfg.Store, timing: &cfg.Timing,
		tasks: map[procfleet.TaskID]*failedItems{},
	}
}

// failedItems bounds the spans of items that failed in a task of which not
// every item is followed.
type failedItems struct {
	traced bool        // the task itself is
	spans  map[int]int // by part of the task
}

// maxFailedTasks is how many tasks with failures are remembered; then their
// bounds begin anew.
const maxFailedTasks = 1024

// recorded is told of messages whose results are stored since; taken is when
// they were taken from the inbox.
func (t *resultTrace) recorded(ctx context.Context, taken time.Time, messages []*request) {
	if t.tracer == nil {
		return
	}
	stored := time.Now()
	for _, m := range messages {
		there, sampled := tracecontext.Has(m.msg.Header)
		if !there || !sampled && !t.failedOne(ctx, m) {
			continue
		}
		ctx := tracecontext.With(tracecontext.Extract(ctx, m.msg.Header), true)
		agentSpans(ctx, t.agents, m.task, m.results, sampled)
		_, span := tracecontext.Start(ctx, t.tracer, "results record", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(taken),
			trace.WithAttributes(tracecontext.KeyTask.String(string(m.task)), tracecontext.KeyItems.Int(len(m.results)),
				keyMessages.Int(len(messages))))
		span.End(trace.WithTimestamp(stored))
	}
}

// failedOne reports whether a message of a host that was not followed is to
// be, for a failure in it.
func (t *resultTrace) failedOne(ctx context.Context, m *request) bool {
	failure := func(r procfleet.Result) bool { return r.State().Failure() }
	at := slices.IndexFunc(m.results, failure)
	if at < 0 {
		return false
	}
	t.mu.Lock()
	f := t.tasks[m.task]
	t.mu.Unlock()
	if f == nil {
		f = t.look(ctx, m.task)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	part := m.results[at].Item / procfleet.ChunkItems
	if f == nil || !f.traced || f.spans[part] >= maxFailedSpans {
		return false
	}
	f.spans[part]++
	return true
}

// look asks whether a task is traced, nil if that cannot be known. Only the
// stored task tells: its items that are not followed look like those of a
// task that is not.
func (t *resultTrace) look(ctx context.Context, id procfleet.TaskID) *failedItems {
	ctx, cancel := context.WithTimeoutCause(ctx, t.timing.StoreCall, errStoreSlow)
	defer cancel()
	task, err := t.store.Task(ctx, id)
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

// agentSpans makes a span of each result, or of the failures alone.
func agentSpans(ctx context.Context, agents trace.Tracer, task procfleet.TaskID, results []procfleet.Result, all bool) {
	for i := range results {
		r := &results[i]
		state := r.State()
		if r.AcceptedAt.IsZero() || r.FinishedAt.IsZero() || !all && !state.Failure() {
			continue
		}
		_, span := tracecontext.Start(ctx, agents, "agent operate", trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(r.AcceptedAt),
			trace.WithAttributes(
				tracecontext.KeyTask.String(string(task)), keyItem.Int(r.Item), keyCode.Int(int(r.Code)), keyReason.String(string(r.Reason)),
				tracecontext.KeyState.String(string(state)), keyClock.String("agent")))
		if !r.StartedAt.IsZero() {
			span.AddEvent("started", trace.WithTimestamp(r.StartedAt))
		}
		if state.Failure() {
			tracecontext.Fail(span, r.Message)
		}
		span.End(trace.WithTimestamp(r.FinishedAt))
	}
}

// traceSweep begins the span of something that the sweep does for a task, in
// the task's trace.
func (sh *shard) traceSweep(ctx context.Context, task *procfleet.Task, action string) (context.Context, trace.Span) {
	return tracecontext.Start(tracecontext.FromText(ctx, task.Trace), sh.tracer, "sweep "+action,
		trace.WithAttributes(tracecontext.KeyTask.String(string(task.ID))))
}

// traceEnd begins the span of telling a task's end.
func (n *notifier) traceEnd(ctx context.Context, task *procfleet.Task) (context.Context, trace.Span) {
	return tracecontext.Start(tracecontext.FromText(ctx, task.Trace), n.tracer, "task notify", trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(tracecontext.KeyTask.String(string(task.ID)), tracecontext.KeyState.String(string(task.State)),
			tracecontext.KeyItems.Int(task.Items), keyFailed.Int(task.Counts.Failed())))
}
