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

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

// givesUp reports whether a callback was tried for long enough.
func (n *notifier) givesUp(task *procfleet.Task) bool {
	now := n.clock.now()
	return now.Sub(n.stepped.since(task.ID, task.FinishedAt, now)) > n.timing.CallbackFor || now.After(task.ExpiresAt)
}

// maxCallbackAnswer is how much of a callback's answer is read, to be able to
// use the connection again.
const maxCallbackAnswer = 4 << 10

// call posts the event to the task's callback, if it has one.
func (n *notifier) call(ctx context.Context, task *procfleet.Task, event *bus.TaskFinished) (err error) {
	if task.Callback == "" {
		return nil
	}
	ctx, span := tracecontext.Start(ctx, n.tracer, "task callback", trace.WithSpanKind(trace.SpanKindClient))
	defer func() {
		n.metrics.callback(ctx, err)
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
	now := n.clock.now()
	since := now.Sub(n.stepped.since(task.ID, task.FinishedAt, now))
	return min(max(since/2, n.timing.Sweep.RevisitMin), n.timing.Sweep.RevisitMax)
}
