package dispatcher

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
)

// trace begins the request's span. A request that makes a task begins a trace
// if its caller has none; a query has a span only in its caller's trace,
// since whoever polls would else make a trace a second.
func (e *exchange) trace() {
	ctx := propagation.TraceContext{}.Extract(e.r.Context(), propagation.HeaderCarrier(e.r.Header))
	kind, name := trace.WithSpanKind(trace.SpanKindServer), "HTTP "+e.name()
	if e.call != nil && accepts(e.call.Use) {
		ctx, e.span = e.api.cfg.Tracer.Start(ctx, name, kind)
	} else {
		ctx, e.span = tracecontext.Start(ctx, e.api.cfg.Tracer, name, kind)
	}
	e.r = e.r.WithContext(ctx)
}

func accepts(use any) bool {
	_, yes := use.(dialect.Accept)
	return yes
}

// traced begins the span of an acceptance, the parent of all that becomes of
// the task; done ends it. A submission that came by another door than HTTP,
// from a caller without a trace, begins its trace here.
func (s *submitter) traced(ctx context.Context, sub *procfleet.Submission) (_ context.Context, done func(*procfleet.Task, error)) {
	ctx, span := s.cfg.Tracer.Start(ctx, "task accept")
	if !span.IsRecording() {
		return ctx, func(*procfleet.Task, error) {}
	}
	return ctx, func(task *procfleet.Task, err error) {
		span.SetAttributes(tracecontext.KeyItems.Int(sub.Items()))
		if task.ID != "" {
			span.SetAttributes(tracecontext.KeyTask.String(string(task.ID)), tracecontext.KeyLane.String(string(task.Lane)),
				tracecontext.KeyChunks.Int(task.Chunks))
		}
		tracecontext.End(span, err)
	}
}

// watched times every call to a store and makes it a span of the task's, or
// the caller's, trace.
type watched struct {
	Store
	measures *measures
	tracer   trace.Tracer
}

// call begins a call; done is told its error.
func (w *watched) call(ctx context.Context, name string) (_ context.Context, done func(error)) {
	began := time.Now()
	ctx, span := tracecontext.Start(ctx, w.tracer, "store "+name, trace.WithSpanKind(trace.SpanKindClient))
	return ctx, func(err error) {
		w.measures.storeTime(ctx, name, time.Since(began))
		tracecontext.End(span, err)
	}
}

func (w *watched) Create(ctx context.Context, d taskstore.Draft) (t procfleet.Task, created bool, err error) {
	ctx, done := w.call(ctx, "create")
	defer func() { done(err) }()
	return w.Store.Create(ctx, d)
}

func (w *watched) Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) (err error) {
	ctx, done := w.call(ctx, "dispatched")
	defer func() { done(err) }()
	return w.Store.Dispatched(ctx, id, sequences)
}

func (w *watched) Reject(ctx context.Context, id procfleet.TaskID, reason string) (rejected bool, err error) {
	ctx, done := w.call(ctx, "reject")
	defer func() { done(err) }()
	return w.Store.Reject(ctx, id, reason)
}

func (w *watched) Resolve(ctx context.Context, agentIDs []string) (hosts []procfleet.Host, err error) {
	ctx, done := w.call(ctx, "resolve")
	defer func() { done(err) }()
	return w.Store.Resolve(ctx, agentIDs)
}

func (w *watched) Task(ctx context.Context, id procfleet.TaskID) (t procfleet.Task, err error) {
	ctx, done := w.call(ctx, "task")
	defer func() { done(err) }()
	return w.Store.Task(ctx, id)
}

func (w *watched) Tasks(ctx context.Context, q taskstore.TaskQuery) (ts []procfleet.Task, err error) {
	ctx, done := w.call(ctx, "tasks")
	defer func() { done(err) }()
	return w.Store.Tasks(ctx, q)
}

func (w *watched) Chunk(ctx context.Context, id procfleet.TaskID, chunk int) (items []procfleet.ItemResult, err error) {
	ctx, done := w.call(ctx, "chunk")
	defer func() { done(err) }()
	return w.Store.Chunk(ctx, id, chunk)
}

func (w *watched) Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) (page []procfleet.ItemResult, next string, err error) {
	ctx, done := w.call(ctx, "results")
	defer func() { done(err) }()
	return w.Store.Results(ctx, id, q)
}

func (w *watched) HostPage(ctx context.Context, after procfleet.Host, limit int) (page []taskstore.Presence, err error) {
	ctx, done := w.call(ctx, "hosts")
	defer func() { done(err) }()
	return w.Store.HostPage(ctx, after, limit)
}

// watchedQueue is the same for queueing. The messages carry its span, so that
// what workers do with a chunk hangs below its publication.
type watchedQueue struct {
	Queue
	measures *measures
	tracer   trace.Tracer
}

func (w *watchedQueue) PublishChunks(ctx context.Context, refs []bus.ChunkRef, round string) ([]uint64, error) {
	began := time.Now()
	ctx, span := tracecontext.Start(ctx, w.tracer, "chunks publish", trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(tracecontext.KeyChunks.Int(len(refs))))
	sequences, err := w.Queue.PublishChunks(ctx, refs, round)
	w.measures.publishTime(ctx, time.Since(began), err)
	tracecontext.End(span, err)
	return sequences, err
}
