package notify

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet"
)

func TestAllReceiversTogetherAreBounded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	q := newCallbackQueues(func(ctx context.Context, _ procfleet.TaskID) error {
		<-ctx.Done() // the receiver hangs
		return nil
	})
	const hanging = maxReceivers / 2
	for i := range hanging {
		for j := range 4 * maxCallbacks {
			q.offer(ctx, "receiver-"+strconv.Itoa(i), procfleet.TaskID(strconv.Itoa(j)))
		}
	}
	q.offer(ctx, "another", "its task")
	q.mu.Lock()
	running, waiting := 0, 0
	for host, r := range q.receivers {
		running, waiting = running+r.running, waiting+len(r.waiting)
		if r.running == 0 {
			t.Errorf("%s is not called", host)
		}
	}
	receivers := len(q.receivers)
	if q.waiting.Load() != int64(waiting) || q.running.Load() != int64(running) {
		t.Errorf("%d waiting and %d running were counted, want %d and %d", q.waiting.Load(), q.running.Load(), waiting, running)
	}
	q.mu.Unlock()
	if receivers != hanging+1 || running > maxCalls+receivers || waiting > maxWaiting+receivers*maxCallbacks {
		t.Errorf("%d receivers, %d calls at a time, %d waiting", receivers, running, waiting)
	}
	cancel()
	q.calls.Wait()
	if n := q.running.Load(); n != 0 {
		t.Errorf("%d calls run after the end", n)
	}
}

// TestACallbackBeyondTheLimitIsMadeLater passes each task twice, as the sweep does.
func TestACallbackBeyondTheLimitIsMadeLater(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var calls atomic.Int32
	q := newCallbackQueues(func(context.Context, procfleet.TaskID) error {
		<-release
		calls.Add(1)
		return nil
	})
	const tasks = 2 * receiverQueue
	offer := func() {
		for j := range tasks {
			q.offer(t.Context(), "receiver", procfleet.TaskID(strconv.Itoa(j)))
		}
	}
	offer()
	close(release)
	q.calls.Wait()
	taken := int(calls.Load())
	if taken >= tasks {
		t.Fatalf("all %d callbacks were queued", taken)
	}
	offer()
	q.calls.Wait()
	if int(calls.Load()) <= taken || q.waiting.Load() != 0 || q.running.Load() != 0 || len(q.receivers) != 0 {
		t.Errorf("%d calls after %d, %d waiting, %d running, %d receivers", calls.Load(), taken, q.waiting.Load(), q.running.Load(), len(q.receivers))
	}
}
