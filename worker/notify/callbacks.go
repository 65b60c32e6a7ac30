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
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/worker/metrics"
)

// callbackQueues has one queue per receiver of callbacks, so that a hanging receiver
// delays neither events nor other receivers. A callback is dropped if it exceeds the
// limits or its receiver keeps failing. Its notification stays pending in the store,
// and the sweep offers it again.
//
// All receivers together may have maxWaiting callbacks waiting and maxCalls running.
// Beyond that, each receiver may still have maxCallbacks waiting and one running, so
// that hanging receivers cannot block the others.
type callbackQueues struct {
	call func(ctx context.Context, id procfleet.TaskID) error

	mu    sync.Mutex
	by    map[string]*receiver
	calls sync.WaitGroup
	// Totals of all receivers; written under mu.
	waiting, running atomic.Int64
}

// receiver is the queue of one host and port.
type receiver struct {
	waiting  []procfleet.TaskID
	taken    map[procfleet.TaskID]bool // callbacks that are waiting or running
	running  int
	failures int       // consecutive failures
	until    time.Time // end of the pause after repeated failures
}

const (
	receiverQueue    = 1024  // waiting callbacks of one receiver
	maxReceivers     = 1024  // receivers with callbacks, or failing
	maxWaiting       = 16384 // waiting callbacks of all receivers
	maxCalls         = 512   // running callbacks of all receivers
	receiverFailures = 3     // consecutive failures that start a pause
	pauseMin         = time.Second
	pauseMax         = time.Minute
)

func newCallbackQueues(call func(context.Context, procfleet.TaskID) error) *callbackQueues {
	return &callbackQueues{call: call, by: map[string]*receiver{}}
}

func (q *callbackQueues) register(meter metric.Meter) error {
	return errors.Join(
		metrics.Gauge(meter, "callbacks_waiting", "Callbacks that wait for their receivers.", &q.waiting),
		metrics.Gauge(meter, "callbacks_running", "Callbacks that are being made.", &q.running))
}

// offer queues a task's callback unless it is queued or exceeds a limit. It does not
// block.
func (q *callbackQueues) offer(ctx context.Context, host string, id procfleet.TaskID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.by[host]
	if r == nil {
		if len(q.by) >= maxReceivers {
			q.evict()
		}
		if len(q.by) >= maxReceivers {
			return
		}
		r = &receiver{taken: map[procfleet.TaskID]bool{}}
		q.by[host] = r
	}
	full := len(r.waiting) >= receiverQueue || q.waiting.Load() >= maxWaiting && len(r.waiting) >= maxCallbacks
	if full || r.taken[id] || time.Now().Before(r.until) {
		return
	}
	r.taken[id] = true
	r.waiting = append(r.waiting, id)
	q.waiting.Add(1)
	if r.running == 0 || r.running < r.limit() && q.running.Load() < maxCalls {
		r.running++
		q.running.Add(1)
		q.calls.Go(func() { q.serve(ctx, host, r) })
	}
}

// limit returns the maximum concurrent callbacks: one for a receiver that keeps
// failing.
func (r *receiver) limit() int {
	if r.failures >= receiverFailures {
		return 1
	}
	return maxCallbacks
}

// evict removes the receivers without running callbacks.
func (q *callbackQueues) evict() {
	for host, r := range q.by {
		if r.running == 0 {
			delete(q.by, host)
		}
	}
}

// serve makes the callbacks of one receiver until none is waiting.
func (q *callbackQueues) serve(ctx context.Context, host string, r *receiver) {
	for {
		id, ok := q.next(ctx, host, r)
		if !ok {
			return
		}
		q.finish(r, id, q.call(ctx, id))
	}
}

func (q *callbackQueues) next(ctx context.Context, host string, r *receiver) (id procfleet.TaskID, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(r.waiting) == 0 || ctx.Err() != nil || r.running > r.limit() {
		r.running--
		q.running.Add(-1)
		if r.running == 0 && r.failures == 0 && len(r.waiting) == 0 {
			delete(q.by, host)
		}
		return "", false
	}
	id, r.waiting = r.waiting[0], r.waiting[1:]
	q.waiting.Add(-1)
	return id, true
}

// finish records the end of a callback. After receiverFailures consecutive failures, it
// drops the waiting callbacks, which the sweep offers again, and pauses the receiver.
// The pause doubles with each further failure.
func (q *callbackQueues) finish(r *receiver, id procfleet.TaskID, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(r.taken, id)
	if err == nil {
		r.failures, r.until = 0, time.Time{}
		return
	}
	if r.failures++; r.failures < receiverFailures {
		return
	}
	r.until = time.Now().Add(min(pauseMin<<min(r.failures-receiverFailures, 6), pauseMax))
	for _, left := range r.waiting {
		delete(r.taken, left)
	}
	q.waiting.Add(-int64(len(r.waiting)))
	r.waiting = nil
}

// givesUp reports whether CallbackFor has passed or the task has expired.
func (n *Notifier) givesUp(task *procfleet.Task) bool {
	now := n.cfg.Clock.Now()
	return now.Sub(n.stepped.Since(task.ID, task.FinishedAt, now)) > n.cfg.CallbackFor || now.After(task.ExpiresAt)
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
		n.cfg.Metrics.Callback(outcomeOf(err))
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
	case refused(err):
		return metrics.CallbackRefused
	case err != nil:
		return metrics.CallbackFailed
	}
	return metrics.CallbackOK
}

// CallbackPause returns the pause before the next attempt of a task's callback. The
// pause grows with the time since the task's end.
func (n *Notifier) CallbackPause(task *procfleet.Task) time.Duration {
	now := n.cfg.Clock.Now()
	since := now.Sub(n.stepped.Since(task.ID, task.FinishedAt, now))
	return min(max(since/2, n.cfg.RetryMin), n.cfg.RetryMax)
}
