package deliver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
)

// A begun chunk has a lease of [Timing.AcceptWindow] from the store's time of Begin. The
// lease bounds accept_before of every request, and a worker renews it after it has read
// that the task is not held. So no agent accepts a command of a task that was paused
// longer ago than the window, even if the worker was suspended or received no hint.

// errHeld ends the delivery of a chunk whose task is held or canceled, or has canceled items.
var errHeld = errors.New("the task is paused or canceled")

// renew renews the lease. It returns errHeld if the task is held or canceled, or if it was
// controlled otherwise since Begin: some of its items may be canceled.
func (dl *delivery) renew(ctx context.Context) error {
	asked := dl.cfg.Clock.Now()
	var task procfleet.Task
	err := dl.cfg.Calls.Retry(ctx, func(ctx context.Context) (err error) {
		task, err = dl.cfg.Store.Task(ctx, dl.ref.Task)
		return err
	})
	if err != nil {
		return fmt.Errorf("read task %s: %w", dl.ref.Task, err)
	}
	if task.Held() || task.Canceled() || task.Seq != dl.begun.Task.Seq {
		return errHeld
	}
	dl.leased = asked
	return nil
}

// renewStale renews a lease of which more than a tenth has passed.
func (dl *delivery) renewStale(ctx context.Context) error {
	if dl.cfg.Clock.Now().Before(dl.leased.Add(dl.cfg.Timing.AcceptWindow / 10)) {
		return nil
	}
	return dl.renew(ctx)
}

// dropHeld acknowledges the reference to a chunk of a held task. After the task is
// resumed, the sweep publishes the chunk again. If the task was resumed before the
// reference was removed from the stream, the sweep did not miss it: dropHeld publishes it. A
// canceled task is not held, so the next delivery of its chunk cancels the items.
func (d *Deliverer) dropHeld(ctx context.Context, ref bus.ChunkRef, msg jetstream.Msg) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requeueTimeout)
	defer cancel()
	log := d.log.WithFields(logrus.Fields{"task": ref.Task, "chunk": ref.Chunk})
	if err := msg.DoubleAck(ctx); err != nil {
		log.WithError(err).Warn("paused chunk not dropped, will be redelivered")
		return
	}
	task, err := d.cfg.Store.Task(ctx, ref.Task)
	if err == nil && !task.Held() && !task.State.Done() {
		err = d.republish(ctx, msg.Data())
	}
	if err != nil {
		log.WithError(fmt.Errorf("after the task was paused: %w", err)).Warn("chunk not requeued, the sweep recovers it")
	}
}

// holds notifies deliveries that their task was paused.
type holds struct {
	mu       sync.Mutex
	watching map[procfleet.TaskID][]chan struct{}
}

func newHolds() *holds { return &holds{watching: map[procfleet.TaskID][]chan struct{}{}} }

// watch returns a channel that receives when the task is paused. Call stop once.
func (h *holds) watch(id procfleet.TaskID) (held <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watching[id] = append(h.watching[id], c)
	return c, func() { h.remove(id, c) }
}

func (h *holds) remove(id procfleet.TaskID, c chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := slices.DeleteFunc(h.watching[id], func(other chan struct{}) bool { return other == c })
	if len(left) == 0 {
		delete(h.watching, id)
		return
	}
	h.watching[id] = left
}

// hold notifies the deliveries of a task. It does not block.
func (h *holds) hold(id procfleet.TaskID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.watching[id] {
		select {
		case c <- struct{}{}:
		default: // a hint is pending already
		}
	}
}
