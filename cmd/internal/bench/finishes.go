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

// finishes hears the event that tells the end of each task. Workers send it
// after the task is finished in Redis, so times by it are a little longer than
// those by Redis, which need not be asked all the time.
type finishes struct {
	sub *nats.Subscription

	mu      sync.Mutex
	awaited map[procfleet.TaskID]chan finish
	early   map[procfleet.TaskID]finish // told before anybody waited
}

type finish struct {
	Task   procfleet.TaskID `json:"task"`
	Counts procfleet.Counts `json:"counts"`
}

func hearFinishes(conn *nats.Conn) (*finishes, error) {
	f := &finishes{awaited: map[procfleet.TaskID]chan finish{}, early: map[procfleet.TaskID]finish{}}
	var err error
	if f.sub, err = conn.Subscribe(bus.SubjectFinished, f.heard); err != nil {
		return nil, err
	}
	return f, conn.FlushTimeout(patience)
}

func (f *finishes) stop() { _ = f.sub.Unsubscribe() } // fails if the connection is gone, and the subscription with it

func (f *finishes) heard(msg *nats.Msg) {
	var told finish
	if err := json.Unmarshal(msg.Data, &told); err != nil {
		return // whoever waits for it will say that it did not come
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.awaited[told.Task]; ok {
		delete(f.awaited, told.Task)
		c <- told
		return
	}
	f.early[told.Task] = told
}

// of returns a channel that gets the end of a task, once.
func (f *finishes) of(id procfleet.TaskID) <-chan finish {
	c := make(chan finish, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if told, ok := f.early[id]; ok {
		delete(f.early, id)
		c <- told
		return c
	}
	f.awaited[id] = c
	return c
}

// await waits for the end of a task and checks that it succeeded on so many
// hosts.
func (f *finishes) await(ctx context.Context, id procfleet.TaskID, hosts int) error {
	select {
	case told := <-f.of(id):
		if n := told.Counts[procfleet.StateSucceeded]; n != hosts {
			return fmt.Errorf("task %s: %d of %d hosts succeeded: %v", id, n, hosts, told.Counts)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the end of task %s was not told: %w", id, context.Cause(ctx))
	}
}
