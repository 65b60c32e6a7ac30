package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet"
)

// callbackQueues has a queue for each receiver of callbacks, so that one that
// hangs delays neither events nor other receivers. What finds no room, and what
// waits for a receiver that keeps failing, is dropped: its notification is
// pending in the store, and the sweep offers it again.
//
// All receivers together have maxWaiting callbacks waiting and maxCalls running.
// Beyond that each one still has maxCallbacks waiting and one running, so that
// receivers that hang cannot take the room of the others.
type callbackQueues struct {
	call func(ctx context.Context, id procfleet.TaskID) error

	mu    sync.Mutex
	by    map[string]*receiver
	calls sync.WaitGroup
	// Of all receivers; changed under mu.
	waiting, running atomic.Int64
}

// receiver is one host and port.
type receiver struct {
	waiting  []procfleet.TaskID
	taken    map[procfleet.TaskID]bool // waiting or being called
	running  int
	failures int       // in a row
	until    time.Time // no call before: the receiver keeps failing
}

const (
	receiverQueue    = 1024  // callbacks that wait for one receiver
	maxReceivers     = 1024  // that callbacks wait for, or that keep failing
	maxWaiting       = 16384 // callbacks that wait for all receivers
	maxCalls         = 512   // at a time, to all receivers
	receiverFailures = 3     // in a row, after which a receiver is given a pause
	pauseMin         = time.Second
	pauseMax         = time.Minute
)

func newCallbackQueues(call func(context.Context, procfleet.TaskID) error) *callbackQueues {
	return &callbackQueues{call: call, by: map[string]*receiver{}}
}

func (q *callbackQueues) register(meter metric.Meter) error {
	_, err := meter.Int64ObservableGauge("procfleet_worker_callbacks_waiting",
		metric.WithDescription("Callbacks that wait for their receivers."), observe(&q.waiting))
	_, err2 := meter.Int64ObservableGauge("procfleet_worker_callbacks_running",
		metric.WithDescription("Callbacks that are being made."), observe(&q.running))
	return errors.Join(err, err2)
}

// offer queues a task's callback unless it is queued; it never waits.
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

// limit is how many calls a receiver gets at a time; one that keeps failing is
// tried with one.
func (r *receiver) limit() int {
	if r.failures >= receiverFailures {
		return 1
	}
	return maxCallbacks
}

// evict forgets the receivers for which nothing waits.
func (q *callbackQueues) evict() {
	for host, r := range q.by {
		if r.running == 0 {
			delete(q.by, host)
		}
	}
}

// serve makes the calls of one receiver until none waits.
func (q *callbackQueues) serve(ctx context.Context, host string, r *receiver) {
	for {
		id, ok := q.next(ctx, host, r)
		if !ok {
			return
		}
		q.over(r, id, q.call(ctx, id))
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

// over ends a call. After some failures in a row, what waits is left to the
// sweep, and the receiver gets a pause that doubles with each further failure.
func (q *callbackQueues) over(r *receiver, id procfleet.TaskID, err error) {
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
