package worker

import (
	"context"
	"errors"
	"fmt"
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
	taken map[procfleet.TaskID]bool // queued or being told
}

// maxCallbacks is how many callbacks one receiver gets at a time.
const maxCallbacks = 16

// notifyQueue is how many ends may wait to be told; more are left to the sweep.
const notifyQueue = 4096

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

// soon has the end of a task told, unless that is about to happen; it never
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

func (n *notifier) leave(id procfleet.TaskID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.taken, id)
}

// run tells what comes until stop is closed and the queue is empty, or ctx ends.
func (n *notifier) run(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case id := <-n.queue:
			n.tellQueued(ctx, id)
		case <-stop:
			select {
			case id := <-n.queue:
				n.tellQueued(ctx, id)
			default:
				return
			}
		}
	}
}

func (n *notifier) tellQueued(ctx context.Context, id procfleet.TaskID) {
	defer n.leave(id)
	if ctx.Err() != nil {
		return
	}
	task, err := n.store.Task(ctx, id)
	if err == nil {
		err = n.tell(ctx, &task)
	}
	if err != nil && !errors.Is(err, taskstore.ErrNotFound) {
		n.log.WithError(err).WithField("task", id).Warn("completion notification pending")
	}
}

// tell tells the end of a task unless it was told, and takes the task out of
// the sweep index. A callback that fails for too long is given up. A task
// that is open after all, since its store failed over, is left to the sweep.
func (n *notifier) tell(ctx context.Context, task *procfleet.Task) (err error) {
	if !task.State.Done() {
		return nil
	}
	if !task.NotifyPending {
		n.stepped.forget(task.ID)
		if task.State == procfleet.TaskRejected { // else its end was told when it came
			if err := n.audit.Keep(ctx, audit.OfEnd(task)); err != nil {
				return err
			}
		}
		if err := n.store.Settle(ctx, taskstore.Visit{Task: task.ID}); err != nil {
			return fmt.Errorf("settle task %s: %w", task.ID, err)
		}
		return nil
	}
	work := ctx
	ctx, span := n.traceEnd(ctx, task)
	defer func() { tracecontext.End(span, err) }()
	n.reached(PointBeforeNotify)
	if !task.EventPublished {
		if err := n.publish(ctx, task); err != nil {
			return err
		}
	}
	target, err := url.Parse(task.Callback)
	if err != nil || target.Host == "" {
		return n.settle(ctx, task)
	}
	if !task.EventPublished {
		err = n.store.Published(ctx, task.ID)
	}
	n.callbacks.offer(work, target.Host, task.ID) // also without the mark, which only saves a repeat of the event
	if err != nil {
		return fmt.Errorf("record event of task %s as published: %w", task.ID, err)
	}
	return nil
}

// settle notes that the end of a task was notified.
func (n *notifier) settle(ctx context.Context, task *procfleet.Task) error {
	if err := n.store.Notified(ctx, task.ID); err != nil {
		return fmt.Errorf("note task %s as told: %w", task.ID, err)
	}
	n.stepped.forget(task.ID)
	n.metrics.told.Add(ctx, 1)
	return nil
}

// publish sends the event and has the end audited.
func (n *notifier) publish(ctx context.Context, task *procfleet.Task) error {
	if err := n.bus.TaskFinished(ctx, bus.FinishedEvent(*task)); err != nil {
		return err
	}
	return n.audit.Keep(ctx, audit.OfEnd(task))
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
		log.WithError(failed).Warn("callback failed, will retry")
		return failed
	case failed != nil:
		log.WithError(failed).Error("callback failed, giving up")
	}
	if err := n.settle(ctx, &task); err != nil && ctx.Err() == nil {
		log.WithError(err).Warn("notification still pending")
	}
	return failed
}
