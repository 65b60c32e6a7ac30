package notify

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
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

	mu        sync.Mutex
	receivers map[string]*receiver
	calls     sync.WaitGroup
	// Totals of all receivers; written under mu.
	waiting, running atomic.Int64
}

// receiver is the queue of one host and port.
type receiver struct {
	waiting  []procfleet.TaskID
	pending  map[procfleet.TaskID]bool // callbacks that are waiting or running
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
	return &callbackQueues{call: call, receivers: map[string]*receiver{}}
}

func (q *callbackQueues) register(m *metrics.Metrics) error {
	return errors.Join(
		m.GaugeOf("callbacks_waiting", "Callbacks that wait for their receivers.", &q.waiting),
		m.GaugeOf("callbacks_running", "Callbacks in progress.", &q.running))
}

// offer queues a task's callback unless it is queued or exceeds a limit. It does not
// block.
func (q *callbackQueues) offer(ctx context.Context, host string, id procfleet.TaskID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.receivers[host]
	if r == nil {
		if len(q.receivers) >= maxReceivers {
			q.evict()
		}
		if len(q.receivers) >= maxReceivers {
			return
		}
		r = &receiver{pending: map[procfleet.TaskID]bool{}}
		q.receivers[host] = r
	}
	full := len(r.waiting) >= receiverQueue || q.waiting.Load() >= maxWaiting && len(r.waiting) >= maxCallbacks
	if full || r.pending[id] || time.Now().Before(r.until) {
		return
	}
	r.pending[id] = true
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

func (q *callbackQueues) evict() {
	for host, r := range q.receivers {
		if r.running == 0 {
			delete(q.receivers, host)
		}
	}
}

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
			delete(q.receivers, host)
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
	delete(r.pending, id)
	if err == nil {
		r.failures, r.until = 0, time.Time{}
		return
	}
	if r.failures++; r.failures < receiverFailures {
		return
	}
	r.until = time.Now().Add(min(pauseMin<<min(r.failures-receiverFailures, 6), pauseMax))
	for _, left := range r.waiting {
		delete(r.pending, left)
	}
	q.waiting.Add(-int64(len(r.waiting)))
	r.waiting = nil
}
