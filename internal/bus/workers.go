package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// workerSubject is the subject on which workers announce themselves. No stream captures it.
const workerSubject = "procfleet.worker"

// Worker is the announcement of a worker that runs.
type Worker struct {
	ID      string    `json:"id"`
	Host    string    `json:"host"`    // name of the machine
	Version string    `json:"version"` // of the build
	Started time.Time `json:"started"`
	// Stopped is set in the last announcement of a worker that ends.
	Stopped bool `json:"stopped,omitempty"`
}

// AnnounceWorker publishes the announcement of a worker. It only appends to the connection's buffer.
func (b *Bus) AnnounceWorker(w *Worker) error {
	data, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("announce worker: %w", err)
	}
	if err := b.js.Conn().Publish(workerSubject, data); err != nil {
		return publishError("announce worker", err)
	}
	return nil
}

// FollowWorkers calls announced for every announcement of a worker, one at a time. It ignores
// malformed messages. The caller must call stop once.
func (b *Bus) FollowWorkers(announced func(*Worker)) (stop func(), err error) {
	sub, err := b.js.Conn().Subscribe(workerSubject, func(msg *nats.Msg) {
		var w Worker
		if json.Unmarshal(msg.Data, &w) == nil && w.ID != "" {
			announced(&w)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("follow workers: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only on a closed connection
}

// Backlog returns the number of chunks in the queue, including chunks in delivery. It queries JetStream.
func (b *Bus) Backlog(ctx context.Context) (int, error) {
	stream, err := b.js.Stream(ctx, StreamOps)
	if err != nil {
		return 0, publishError("read the length of the queue", err)
	}
	return int(stream.CachedInfo().State.Msgs), nil //nolint:gosec // message counts are small
}
