package worker

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
)

// notifier publishes the ends of tasks: the event first, then the callback.
// Each is recorded in the store when it is done. What fails stays pending there,
// and the sweep tries it again. At least once, with the same event id each time.
type notifier struct {
	store   Store
	bus     *bus.Bus
	audit   *audit.Log
	clock   *clock
	http    *http.Client
	metrics *metrics
	tracer  trace.Tracer
	timing  *Timing
	reached func(string)
	log     logrus.FieldLogger

	callbacks *callbackQueues
	stepped   *steppedClock // of the ends of tasks with a callback

	queue chan procfleet.TaskID
	mu    sync.Mutex
	taken map[procfleet.TaskID]bool // queued or being notified
}

// maxCallbacks is how many callbacks one receiver gets at a time.
const maxCallbacks = 16

const (
	// notifyQueue is how many ends may wait to be notified; more are left to the sweep.
	notifyQueue = 4096
	// notifyBatch is how many ends are notified together.
	notifyBatch = 256
)

func newNotifier(cfg *Config, clock *clock, m *metrics) *notifier {
	var transport http.RoundTripper = cfg.Receivers.transport()
	if cfg.CallbackTLS != nil {
		transport = cfg.CallbackTLS.Transport(cfg.Receivers.transport())
	}
	n := &notifier{
		store: cfg.Store, bus: cfg.Bus, audit: cfg.Audit, clock: clock, metrics: m, tracer: cfg.Tracer, timing: &cfg.Timing,
		reached: cfg.Reached, log: cfg.Log.WithField("component", "worker.notify"),
		stepped: newSteppedClock(),
		queue:   make(chan procfleet.TaskID, notifyQueue),
		taken:   map[procfleet.TaskID]bool{},
		http: &http.Client{
			Transport: transport, Timeout: cfg.Timing.Callback,
			// The event goes where the caller said and nowhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	n.callbacks = newCallbackQueues(n.callBack)
	return n
}

// soon has the end of a task notified, unless that is about to happen; it never
// waits.
func (n *notifier) soon(id procfleet.TaskID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.taken[id] {
		return
	}
	select {
	case n.queue <- id:
		n.taken[id] = true
	default:
	}
}

func (n *notifier) leave(ids []procfleet.TaskID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range ids {
		delete(n.taken, id)
	}
}

// run notifies what is queued until stop is closed and the queue is empty, or ctx ends.
func (n *notifier) run(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case id := <-n.queue:
			n.notifyQueued(ctx, n.batch(id))
		case <-stop:
			select {
			case id := <-n.queue:
				n.notifyQueued(ctx, n.batch(id))
			default:
				return
			}
		}
	}
}

// batch returns first and what else is queued by now.
func (n *notifier) batch(first procfleet.TaskID) []procfleet.TaskID {
	ids := []procfleet.TaskID{first}
	for len(ids) < notifyBatch {
		select {
		case id := <-n.queue:
			ids = append(ids, id)
		default:
			return ids
		}
	}
	return ids
}

func (n *notifier) notifyQueued(ctx context.Context, ids []procfleet.TaskID) {
	defer n.leave(ids)
	if ctx.Err() != nil {
		return
	}
	tasks, err := readTasks(ctx, n.store, n.log, ids)
	if err != nil {
		n.log.WithError(err).WithField("tasks", len(ids)).Warn("completion notifications pending")
		return
	}
	n.notify(ctx, tasks)
}

// completion is the end of a task on its way through [notifier.notify].
type completion struct {
	ctx  context.Context //nolint:containedctx // of the span
	span trace.Span
	task *procfleet.Task
	wait func() error // for the event, then for the audit record
	err  error
}

// notify notifies the ends of tasks that were not notified, and removes the tasks
// from the sweep index. All events are published before the first acknowledgment
// is awaited. A task that is open after all, since its store failed over, is left
// to the sweep.
func (n *notifier) notify(ctx context.Context, tasks []procfleet.Task) {
	var ends []*completion
	for i := range tasks {
		switch task := &tasks[i]; {
		case !task.State.Done():
		case task.NotifyPending:
			ends = append(ends, n.publish(ctx, task))
		default:
			if err := n.settle(ctx, task); err != nil {
				n.log.WithError(err).WithField("task", task.ID).Warn("completion notification pending")
			}
		}
	}
	for _, e := range ends {
		if e.err = e.wait(); e.err == nil {
			e.wait = n.audit.KeepEnd(e.ctx, e.task)
		}
	}
	var told []*completion
	for _, e := range ends {
		if e.err == nil {
			e.err = e.wait()
		}
		if e.err == nil && !n.offerCallback(ctx, e) {
			told = append(told, e)
		}
	}
	n.notified(told)
	for _, e := range ends {
		if e.err != nil {
			tracecontext.Log(e.ctx, n.log).WithError(e.err).WithField("task", e.task.ID).Warn("completion notification pending")
		}
		tracecontext.End(e.span, e.err)
	}
}

// publish publishes the event of a task's end, unless that was done before.
func (n *notifier) publish(ctx context.Context, task *procfleet.Task) *completion {
	e := &completion{task: task, wait: func() error { return nil }}
	e.ctx, e.span = n.traceEnd(ctx, task)
	n.reached(PointBeforeNotify)
	if !task.EventPublished {
		event := bus.FinishedEvent(*task)
		e.wait = n.bus.PublishFinished(e.ctx, &event)
	}
	return e
}

// offerCallback queues the callback of a task, if it has one.
func (n *notifier) offerCallback(ctx context.Context, e *completion) bool {
	target, err := url.Parse(e.task.Callback)
	if err != nil || target.Host == "" {
		return false
	}
	if !e.task.EventPublished {
		e.err = n.store.Published(e.ctx, e.task.ID)
	}
	n.callbacks.offer(ctx, target.Host, e.task.ID) // also without the mark, which only saves a repeat of the event
	return true
}

// notified records that the ends of tasks were notified. The call is in the trace
// of the first.
func (n *notifier) notified(ends []*completion) {
	if len(ends) == 0 {
		return
	}
	ctx := ends[0].ctx
	ids := make([]procfleet.TaskID, len(ends))
	for i, e := range ends {
		ids[i] = e.task.ID
	}
	if err := n.store.Notified(ctx, ids...); err != nil {
		for _, e := range ends {
			e.err = err
		}
		return
	}
	for _, id := range ids {
		n.stepped.forget(id)
	}
	n.metrics.told.Add(ctx, int64(len(ends)))
}

// settle removes a task whose end was notified, or that was rejected, from the
// sweep index.
func (n *notifier) settle(ctx context.Context, task *procfleet.Task) error {
	n.stepped.forget(task.ID)
	if task.State == procfleet.TaskRejected { // has no event, which would be the record of its end
		if err := n.audit.Keep(ctx, audit.OfEnd(task)); err != nil {
			return err
		}
	}
	return n.store.Settle(ctx, taskstore.Visit{Task: task.ID})
}

// callBack makes the callback of a task whose notification is still pending. An
// error is the receiver's.
func (n *notifier) callBack(ctx context.Context, id procfleet.TaskID) error {
	var log logrus.FieldLogger = n.log.WithField("task", id)
	task, err := n.store.Task(ctx, id)
	if err != nil {
		if !errors.Is(err, taskstore.ErrNotFound) && ctx.Err() == nil {
			log.WithError(err).Warn("callback deferred: task unreadable")
		}
		return nil
	}
	if !task.NotifyPending {
		return nil
	}
	ctx, span := n.traceEnd(ctx, &task)
	event := bus.FinishedEvent(task)
	failed := n.call(ctx, &task, &event)
	tracecontext.End(span, failed)
	log = tracecontext.Log(ctx, log)
	switch {
	case refused(failed):
		log.WithError(failed).Error("callback refused")
		failed = nil // no word on the receiver's health
	case failed != nil && !n.givesUp(&task):
		log.WithError(failed).Warn("callback failed, retrying")
		return failed
	case failed != nil:
		log.WithError(failed).Error("callback failed, giving up")
	}
	e := &completion{ctx: ctx, task: &task}
	if n.notified([]*completion{e}); e.err != nil && ctx.Err() == nil {
		log.WithError(e.err).Warn("completion notification pending")
	}
	return failed
}
