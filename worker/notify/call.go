package notify

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
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/destination"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/metrics"
)

// offerCallback queues the callback of a task and reports whether the task has one.
func (n *Notifier) offerCallback(ctx context.Context, e *completion) bool {
	target, err := url.Parse(e.task.Callback)
	if err != nil || target.Host == "" {
		return false
	}
	if !e.task.EventPublished {
		e.err = n.cfg.Store.Published(e.ctx, e.task.ID)
	}
	n.callbacks.offer(ctx, target.Host, e.task.ID) // even if Published failed: then only the event may be repeated
	return true
}

// callBack makes the callback of a task whose notification is pending. It returns only
// errors of the receiver.
func (n *Notifier) callBack(ctx context.Context, id procfleet.TaskID) error {
	var log logrus.FieldLogger = n.cfg.Log.WithField("task", id)
	task, err := n.cfg.Store.Task(ctx, id)
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
	case destination.Refused(failed):
		log.WithError(failed).Error("callback refused")
		failed = nil // a refused address does not mean that the receiver fails
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

func (n *Notifier) givesUp(task *procfleet.Task) bool {
	return n.sinceEnd(task) > n.cfg.CallbackFor || n.cfg.Clock.Now().After(task.ExpiresAt)
}

func (n *Notifier) sinceEnd(task *procfleet.Task) time.Duration {
	now := n.cfg.Clock.Now()
	return now.Sub(n.stepped.Since(task.ID, task.FinishedAt, now))
}

// maxCallbackAnswer bounds the bytes read of a body, so that connections are reused.
const maxCallbackAnswer = 4 << 10

// call posts the event to the task's callback URL, if the task has one.
func (n *Notifier) call(ctx context.Context, task *procfleet.Task, event *bus.TaskFinished) (err error) {
	if task.Callback == "" {
		return nil
	}
	ctx, span := tracecontext.Start(ctx, n.cfg.Tracer, "task callback", trace.WithSpanKind(trace.SpanKindClient))
	defer func() {
		n.cfg.Metrics.Callbacks.Add(1, outcomeOf(err))
		tracecontext.End(span, err)
	}()
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
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(request.Header))
	response, err := n.http.Do(request)
	if err != nil {
		if whole, ok := errors.AsType[*url.Error](err); ok {
			err = whole.Err // drop the wrapping error: it has the URL, which may contain a secret
		}
		return fmt.Errorf("callback to %s: %w", target.Host, err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, maxCallbackAnswer) // read for connection reuse only
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("callback to %s: answered %s", target.Host, response.Status)
	}
	return nil
}

func outcomeOf(err error) string {
	switch {
	case destination.Refused(err):
		return metrics.CallbackRefused
	case err != nil:
		return metrics.CallbackFailed
	}
	return metrics.CallbackOK
}

// CallbackPause returns the pause before the next attempt of a task's callback. The
// pause grows with the time since the task's end.
func (n *Notifier) CallbackPause(task *procfleet.Task) time.Duration {
	return min(max(n.sinceEnd(task)/2, n.cfg.RetryMin), n.cfg.RetryMax)
}
