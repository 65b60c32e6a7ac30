package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

// notifier tells the ends of tasks: the event first, then the callback, then
// the store that it was told. What fails stays pending in the store, and the
// sweep tries it again. At least once, with the same event id each time.
type notifier struct {
	store   Store
	bus     *bus.Bus
	clock   *clock
	http    *http.Client
	metrics *metrics
	timing  *Timing
	reached func(string)
	log     logrus.FieldLogger
	queue   chan procfleet.TaskID
}

// notifyQueue is how many ends may wait to be told; more are left to the sweep.
const notifyQueue = 4096

func newNotifier(cfg *Config, clock *clock, m *metrics) *notifier {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxConnsPerHost = cfg.Limits.Notifiers
	return &notifier{
		store: cfg.Store, bus: cfg.Bus, clock: clock, metrics: m, timing: &cfg.Timing,
		reached: cfg.Reached, log: cfg.Log.WithField("component", "worker.notify"),
		queue: make(chan procfleet.TaskID, notifyQueue),
		http: &http.Client{
			Transport: transport, Timeout: cfg.Timing.Callback,
			// The event goes where the caller said and nowhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// soon has the end of a task told; it never waits.
func (n *notifier) soon(id procfleet.TaskID) {
	select {
	case n.queue <- id:
	default:
	}
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
	if ctx.Err() != nil {
		return
	}
	task, err := n.store.Task(ctx, id)
	if err == nil {
		err = n.tell(ctx, &task)
	}
	if err != nil && !errors.Is(err, taskstore.ErrNotFound) {
		n.log.WithError(err).WithField("task", id).Warn("task's end not told yet, left to the sweep")
	}
}

// tell tells the end of a task unless it was told, and takes the task out of
// the sweep index. A callback that fails for too long is given up. A task
// that is open after all, since its store failed over, is left to the sweep.
func (n *notifier) tell(ctx context.Context, task *procfleet.Task) error {
	if !task.State.Done() {
		return nil
	}
	if task.NotifyPending {
		n.reached(PointBeforeNotify)
		event := bus.FinishedEvent(*task)
		if err := n.bus.TaskFinished(ctx, event); err != nil {
			return err
		}
		if err := n.call(ctx, task, &event); err != nil {
			if !n.givesUp(task) {
				return err
			}
			n.log.WithError(err).WithField("task", task.ID).Error("callback given up")
		}
		if err := n.store.Notified(ctx, task.ID); err != nil {
			return fmt.Errorf("note task %s as told: %w", task.ID, err)
		}
		n.metrics.told.Add(ctx, 1)
	}
	if err := n.store.Settle(ctx, task.ID); err != nil {
		return fmt.Errorf("settle task %s: %w", task.ID, err)
	}
	return nil
}

// givesUp reports whether a callback was tried for long enough.
func (n *notifier) givesUp(task *procfleet.Task) bool {
	now := n.clock.now()
	return now.After(task.FinishedAt.Add(n.timing.CallbackFor)) || now.After(task.ExpiresAt)
}

// maxCallbackAnswer is how much of a callback's answer is read, to be able to
// use the connection again.
const maxCallbackAnswer = 4 << 10

// call posts the event to the task's callback, if it has one.
func (n *notifier) call(ctx context.Context, task *procfleet.Task, event *bus.TaskFinished) error {
	if task.Callback == "" {
		return nil
	}
	target, err := url.Parse(task.Callback)
	if err != nil || target.Scheme != "http" && target.Scheme != "https" {
		return errors.New("callback is not an http or https URL")
	}
	body, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("encode event %s: %w", event.Event, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("callback to %s: %w", target.Host, err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", event.Event)
	response, err := n.http.Do(request)
	if err != nil {
		if whole, ok := errors.AsType[*url.Error](err); ok {
			err = whole.Err // whole repeats the URL, which may hold a secret
		}
		return fmt.Errorf("callback to %s: %w", target.Host, err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, maxCallbackAnswer) // only the status counts
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("callback to %s: answered %s", target.Host, response.Status)
	}
	return nil
}

// callbackPause is how long after a failed try the next one comes: it grows
// with the time since the task's end.
func (n *notifier) callbackPause(task *procfleet.Task) time.Duration {
	since := n.clock.now().Sub(task.FinishedAt)
	return min(max(since/2, n.timing.Sweep.RevisitMin), n.timing.Sweep.RevisitMax)
}
