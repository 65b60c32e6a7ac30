package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
)

// finishes receives the finished events of tasks, which need no polling. Workers publish
// an event after the task is finished in Redis, so the measured times are slightly longer
// than times measured in Redis.
type finishes struct {
	sub *nats.Subscription

	mu      sync.Mutex
	awaited map[procfleet.TaskID]chan finish
	early   map[procfleet.TaskID]finish // ends received before [finishes.of] was called for the task
}

type finish struct {
	Task   procfleet.TaskID `json:"task"`
	Counts procfleet.Counts `json:"counts"`
}

func subscribeFinishes(conn *nats.Conn) (*finishes, error) {
	f := &finishes{awaited: map[procfleet.TaskID]chan finish{}, early: map[procfleet.TaskID]finish{}}
	var err error
	if f.sub, err = conn.Subscribe(bus.SubjectFinished, f.receive); err != nil {
		return nil, err
	}
	return f, conn.FlushTimeout(patience)
}

func (f *finishes) stop() { _ = f.sub.Unsubscribe() } // fails only on a closed connection, which has no subscriptions

func (f *finishes) receive(msg *nats.Msg) {
	var finished finish
	if err := json.Unmarshal(msg.Data, &finished); err != nil {
		return // await reports the missing event
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.awaited[finished.Task]; ok {
		delete(f.awaited, finished.Task)
		c <- finished
		return
	}
	f.early[finished.Task] = finished
}

// of returns a channel that receives the end of a task exactly once.
func (f *finishes) of(id procfleet.TaskID) <-chan finish {
	c := make(chan finish, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if finished, ok := f.early[id]; ok {
		delete(f.early, id)
		c <- finished
		return c
	}
	f.awaited[id] = c
	return c
}

// await waits for the end of a task and verifies that it succeeded on n hosts.
func (f *finishes) await(ctx context.Context, id procfleet.TaskID, hosts int) error {
	select {
	case finished := <-f.of(id):
		if n := finished.Counts[procfleet.StateSucceeded]; n != hosts {
			return fmt.Errorf("task %s: %d of %d hosts succeeded: %v", id, n, hosts, finished.Counts)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no finished event of task %s: %w", id, context.Cause(ctx))
	}
}
