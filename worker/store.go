package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
)

// watched times every call to a store and makes it a span where a task's
// trace is recorded.
type watched struct {
	Store
	metrics *metrics
	tracer  trace.Tracer
}

// call begins a call; done is told its error.
func (w *watched) call(ctx context.Context, call storeCall) (_ context.Context, done func(error)) {
	began := time.Now()
	ctx, span := tracecontext.Start(ctx, w.tracer, "store "+string(call), trace.WithSpanKind(trace.SpanKindClient))
	return ctx, func(err error) {
		w.metrics.storeTime(ctx, call, time.Since(began))
		tracecontext.End(span, err)
	}
}

func (w *watched) Begin(ctx context.Context, id procfleet.TaskID, chunk int) (b taskstore.Begun, err error) {
	ctx, done := w.call(ctx, callBegin)
	defer func() { done(err) }()
	return w.Store.Begin(ctx, id, chunk)
}

func (w *watched) Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, finished bool) (err error) {
	ctx, done := w.call(ctx, callDelivered)
	defer func() { done(err) }()
	return w.Store.Delivered(ctx, id, chunk, items, finished)
}

func (w *watched) Record(ctx context.Context, batches []taskstore.Batch) (r []taskstore.Recorded, err error) {
	ctx, done := w.call(ctx, callRecord)
	defer func() { done(err) }()
	return w.Store.Record(ctx, batches)
}

func (w *watched) Task(ctx context.Context, id procfleet.TaskID) (t procfleet.Task, err error) {
	ctx, done := w.call(ctx, callTask)
	defer func() { done(err) }()
	return w.Store.Task(ctx, id)
}

func (w *watched) Owners(ctx context.Context, id procfleet.TaskID, items []int) (hosts []procfleet.Host, err error) {
	ctx, done := w.call(ctx, callOwners)
	defer func() { done(err) }()
	return w.Store.Owners(ctx, id, items)
}

func (w *watched) Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) (page []procfleet.ItemResult, next string, err error) {
	ctx, done := w.call(ctx, callResults)
	defer func() { done(err) }()
	return w.Store.Results(ctx, id, q)
}

func (w *watched) Presences(ctx context.Context, hosts []procfleet.Host) (ps []taskstore.Presence, err error) {
	ctx, done := w.call(ctx, callPresences)
	defer func() { done(err) }()
	return w.Store.Presences(ctx, hosts)
}

func (w *watched) Announce(ctx context.Context, as []taskstore.Announcement) (err error) {
	ctx, done := w.call(ctx, callAnnounce)
	defer func() { done(err) }()
	return w.Store.Announce(ctx, as)
}

func (w *watched) Report(ctx context.Context, reports []catalog.Report) (err error) {
	ctx, done := w.call(ctx, callReport)
	defer func() { done(err) }()
	return w.Store.Report(ctx, reports)
}

func (w *watched) FreezesOf(ctx context.Context, hosts []procfleet.Host) (fs [][]catalog.Freeze, err error) {
	ctx, done := w.call(ctx, callFreezesOf)
	defer func() { done(err) }()
	return w.Store.FreezesOf(ctx, hosts)
}

func (w *watched) GroupsOf(ctx context.Context, hosts []procfleet.Host) (gs [][]catalog.HostGroups, err error) {
	ctx, done := w.call(ctx, callGroupsOf)
	defer func() { done(err) }()
	return w.Store.GroupsOf(ctx, hosts)
}

func (w *watched) Due(ctx context.Context, shard, limit int) (visits []taskstore.Visit, err error) {
	ctx, done := w.call(ctx, callDue)
	defer func() { done(err) }()
	return w.Store.Due(ctx, shard, limit)
}

func (w *watched) TasksByID(ctx context.Context, ids []procfleet.TaskID) (tasks []procfleet.Task, err error) {
	ctx, done := w.call(ctx, callTasks)
	defer func() { done(err) }()
	return w.Store.TasksByID(ctx, ids)
}

func (w *watched) DeliveredItems(ctx context.Context, tasks []procfleet.Task) (items [][]procfleet.ItemResult, err error) {
	ctx, done := w.call(ctx, callItems)
	defer func() { done(err) }()
	return w.Store.DeliveredItems(ctx, tasks)
}

func (w *watched) Revisit(ctx context.Context, next ...taskstore.NextVisit) (err error) {
	ctx, done := w.call(ctx, callRevisit)
	defer func() { done(err) }()
	return w.Store.Revisit(ctx, next...)
}

func (w *watched) Published(ctx context.Context, id procfleet.TaskID) (err error) {
	ctx, done := w.call(ctx, callPublished)
	defer func() { done(err) }()
	return w.Store.Published(ctx, id)
}

func (w *watched) Notified(ctx context.Context, ids ...procfleet.TaskID) (err error) {
	ctx, done := w.call(ctx, callNotified)
	defer func() { done(err) }()
	return w.Store.Notified(ctx, ids...)
}

// readTasks reads tasks: the zero Task for an id without a task. A task that
// cannot be read must not delay the others, so it is read last, alone, and has
// nothing but its ID.
func readTasks(ctx context.Context, store Store, log logrus.FieldLogger, ids []procfleet.TaskID) ([]procfleet.Task, error) {
	tasks, err := store.TasksByID(ctx, ids)
	if err == nil {
		return tasks, nil
	}
	if storeAway(err) || ctx.Err() != nil {
		return nil, fmt.Errorf("read %d tasks: %w", len(ids), err)
	}
	tasks = make([]procfleet.Task, len(ids))
	for i, id := range ids {
		task, err := store.Task(ctx, id)
		switch {
		case err == nil:
			tasks[i] = task
		case errors.Is(err, taskstore.ErrNotFound):
		case storeAway(err) || ctx.Err() != nil:
			return nil, fmt.Errorf("read task %s: %w", id, err)
		default:
			tasks[i].ID = id
			log.WithError(err).WithField("task", id).Error("task unreadable, visit postponed")
		}
	}
	return tasks, nil
}
