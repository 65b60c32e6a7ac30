// Package notify publishes the events of tasks: their transitions in order, then their end. It
// then calls the callback of an ended task that has one, if its receiver is allowed.
package notify

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/destination"
	"github.com/procfleet/procfleet/internal/tlsfiles"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/metrics"
	"github.com/procfleet/procfleet/worker/storecall"
)

// Store has the calls to a task store that this package uses.
type Store interface {
	storecall.TaskReader
	taskstore.TransitionLog
	Published(ctx context.Context, id procfleet.TaskID) error
	Notified(ctx context.Context, ids ...procfleet.TaskID) error
	Settle(ctx context.Context, visits ...taskstore.Visit) error
}

// PointBeforeNotify is the point at which [Config].Reached is called: a task has ended
// and its event is not published.
const PointBeforeNotify = "worker.before-notify"

// PointBeforeTransition is such a point: the next transition of a task is stored, and its event
// is not published.
const PointBeforeTransition = "worker.before-transition"

// Config holds the dependencies and settings of a [Notifier].
type Config struct {
	Store Store
	// BeforeEvent is called before the event of a task is published, and again if that fails.
	BeforeEvent func(ctx context.Context, task *procfleet.Task) error
	Bus         *bus.Bus
	Audit       *audit.Log // nil records nothing
	Clock       *storecall.Clock
	Metrics     *metrics.Metrics
	Tracer      trace.Tracer
	Receivers   destination.Policy
	CallbackTLS *tlsfiles.Client // nil means the system's certificate authorities
	// Callback is the timeout of one callback. CallbackFor is how long after a task's
	// end its callback is retried, with growing pauses between RetryMin and RetryMax.
	Callback, CallbackFor, RetryMin, RetryMax time.Duration
	Reached                                   func(point string)
	Log                                       logrus.FieldLogger
}

// Notifier publishes the events of a task's transitions and of its end, then makes its
// callback, and records all in the store. What failed stays pending in the store and the
// sweep retries it: at least once, with the same event id in every attempt.
type Notifier struct {
	cfg       Config
	http      *http.Client
	callbacks *callbackQueues
	stepped   storecall.SteppedClock // end times of tasks with a callback

	queue   chan procfleet.TaskID
	mu      sync.Mutex
	pending map[procfleet.TaskID]bool // tasks that are queued or being notified
}

// maxCallbacks bounds the concurrent callbacks of one receiver.
const maxCallbacks = 16

const (
	// notifyQueue bounds the queued notifications; the sweep retries those beyond it.
	notifyQueue = 4096
	// notifyBatch bounds the notifications that are sent together.
	notifyBatch = 256
)

// New returns a notifier that is inactive until [Notifier.Run].
func New(cfg Config) (*Notifier, error) {
	var transport http.RoundTripper = cfg.Receivers.Transport(maxCallbacks)
	if cfg.CallbackTLS != nil {
		transport = cfg.CallbackTLS.Transport(cfg.Receivers.Transport(maxCallbacks))
	}
	n := &Notifier{
		cfg:     cfg,
		queue:   make(chan procfleet.TaskID, notifyQueue),
		pending: map[procfleet.TaskID]bool{},
		http: &http.Client{
			Transport: transport, Timeout: cfg.Callback,
			// Follow no redirects: the event must only reach the caller's URL.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	n.callbacks = newCallbackQueues(n.callBack)
	return n, n.callbacks.register(cfg.Metrics)
}

// Close waits for the running callbacks. Call it after all calls of Run have returned.
func (n *Notifier) Close() {
	n.callbacks.calls.Wait()
	n.http.CloseIdleConnections()
}

// Soon queues the notification of a task's transitions and its end, unless it is queued already or the
// queue is full. It does not block.
func (n *Notifier) Soon(id procfleet.TaskID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pending[id] {
		return
	}
	select {
	case n.queue <- id:
		n.pending[id] = true
	default:
	}
}

func (n *Notifier) release(ids []procfleet.TaskID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range ids {
		delete(n.pending, id)
	}
}

// Run sends the queued notifications until stop is closed and the queue is empty, or
// ctx ends. Several calls may run concurrently.
func (n *Notifier) Run(ctx context.Context, stop <-chan struct{}) {
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

// batch returns first and the queued tasks, notifyBatch at most.
func (n *Notifier) batch(first procfleet.TaskID) []procfleet.TaskID {
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

func (n *Notifier) notifyQueued(ctx context.Context, ids []procfleet.TaskID) {
	defer n.release(ids)
	if ctx.Err() != nil {
		return
	}
	tasks, err := storecall.ReadTasks(ctx, n.cfg.Store, n.cfg.Log, ids)
	if err != nil {
		n.cfg.Log.WithError(err).WithField("tasks", len(ids)).Warn("events of tasks pending")
		return
	}
	n.notify(ctx, tasks)
}

// completion is the state of one notification.
type completion struct {
	ctx  context.Context //nolint:containedctx // context of the span
	span trace.Span
	task *procfleet.Task
	wait func() error // waits for the event, later for the audit record
	err  error
}

// notify publishes the pending transitions of tasks, sends the pending notifications of those
// that ended, and removes ended tasks without one from the sweep index. It publishes all events
// of ends before it waits for the first acknowledgement.
func (n *Notifier) notify(ctx context.Context, tasks []procfleet.Task) {
	var ends []*completion
	for i := range tasks {
		task := &tasks[i]
		if err := n.publishTransitions(ctx, task); err != nil {
			n.cfg.Log.WithError(err).WithField("task", task.ID).Warn("events of tasks pending")
			continue
		}
		switch {
		case !task.State.Done():
		case task.NotifyPending:
			ends = append(ends, n.publish(ctx, task))
		default:
			if err := n.settle(ctx, task); err != nil {
				n.cfg.Log.WithError(err).WithField("task", task.ID).Warn("completion notification pending")
			}
		}
	}
	for _, e := range ends {
		if e.err = e.wait(); e.err == nil {
			e.wait = n.cfg.Audit.KeepEvent(e.ctx, audit.OfEnd(e.task))
		}
	}
	var sent []*completion
	for _, e := range ends {
		if e.err == nil {
			e.err = e.wait()
		}
		if e.err == nil && !n.offerCallback(ctx, e) {
			sent = append(sent, e)
		}
	}
	n.notified(sent)
	for _, e := range ends {
		if e.err != nil {
			tracecontext.Log(e.ctx, n.cfg.Log).WithError(e.err).WithField("task", e.task.ID).Warn("completion notification pending")
		}
		tracecontext.End(e.span, e.err)
	}
}

// publishTransitions publishes the transitions of a task that are not recorded as published.
// Several workers may do that for one task: the stream has each transition after the one
// before it in any case, because each worker waits for the acknowledgement of that.
func (n *Notifier) publishTransitions(ctx context.Context, task *procfleet.Task) error {
	if task.TransitionsSent >= task.Transitions {
		return nil
	}
	if task.TransitionsSent == 0 && !task.Dispatched { // its dispatcher may have died before it recorded the acceptance
		if err := n.cfg.Audit.Keep(ctx, audit.OfTask(audit.Accepted, task)); err != nil {
			return err
		}
	}
	list, err := n.cfg.Store.Transitions(ctx, task.ID, task.TransitionsSent, task.Transitions)
	if err != nil {
		return err
	}
	for i := range list {
		n.cfg.Reached(PointBeforeTransition)
		event := bus.TransitionEvent(task, task.TransitionsSent+i+1, &list[i])
		if err := n.cfg.Bus.PublishTransition(ctx, &event); err != nil {
			return err
		}
		if err := n.cfg.Audit.KeepEvent(ctx, event.Record())(); err != nil {
			return err
		}
	}
	return n.cfg.Store.TransitionsSent(ctx, task.ID, task.Transitions)
}

func (n *Notifier) publish(ctx context.Context, task *procfleet.Task) *completion {
	e := &completion{task: task, wait: func() error { return nil }}
	e.ctx, e.span = n.traceEnd(ctx, task)
	n.cfg.Reached(PointBeforeNotify)
	if !task.EventPublished {
		if err := n.cfg.BeforeEvent(e.ctx, task); err != nil {
			e.wait = func() error { return err }
			return e
		}
		event := bus.FinishedEvent(*task)
		e.wait = n.cfg.Bus.PublishFinished(e.ctx, &event)
	}
	return e
}

// notified records that tasks were notified, in the trace of the first task.
func (n *Notifier) notified(ends []*completion) {
	if len(ends) == 0 {
		return
	}
	ctx := ends[0].ctx
	ids := make([]procfleet.TaskID, len(ends))
	for i, e := range ends {
		ids[i] = e.task.ID
	}
	if err := n.cfg.Store.Notified(ctx, ids...); err != nil {
		for _, e := range ends {
			e.err = err
		}
		return
	}
	for _, id := range ids {
		n.stepped.Forget(id)
	}
	n.cfg.Metrics.Notified.Add(ctx, int64(len(ends)))
}

// settle removes a task that was notified or rejected from the sweep index.
func (n *Notifier) settle(ctx context.Context, task *procfleet.Task) error {
	n.stepped.Forget(task.ID)
	if task.State == procfleet.TaskRejected { // there is no event to record its end
		if err := n.cfg.Audit.Keep(ctx, audit.OfEnd(task)); err != nil {
			return err
		}
	}
	return n.cfg.Store.Settle(ctx, taskstore.Visit{Task: task.ID})
}

func (n *Notifier) traceEnd(ctx context.Context, task *procfleet.Task) (context.Context, trace.Span) {
	return tracecontext.Start(tracecontext.FromText(ctx, task.Trace), n.cfg.Tracer, "task notify", trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(tracecontext.KeyTask.String(string(task.ID)), tracecontext.KeyState.String(string(task.State)),
			tracecontext.KeyItems.Int(task.Items), attribute.Int("procfleet.failed", task.Counts.Failed())))
}
