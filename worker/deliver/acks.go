package deliver

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ackExtender sends in-progress acknowledgements for the messages that this worker
// handles, so that the server does not redeliver them to another worker.
type ackExtender struct {
	ackWaits chan time.Duration // ack waits of opened consumers

	mu   sync.Mutex
	msgs map[jetstream.Msg]struct{}
}

func newAckExtender() *ackExtender {
	return &ackExtender{ackWaits: make(chan time.Duration), msgs: map[jetstream.Msg]struct{}{}}
}

func (e *ackExtender) add(m jetstream.Msg) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.msgs[m] = struct{}{}
}

func (e *ackExtender) remove(m jetstream.Msg) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.msgs, m)
}

// run extends the ack wait of all messages until ctx ends, at intervals of a third of
// the shortest ack wait.
func (e *ackExtender) run(ctx context.Context) {
	interval := time.Hour // until a consumer is open
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case wait := <-e.ackWaits:
			if third := wait / 3; third > 0 && third < interval {
				interval = third
				ticker.Reset(interval)
			}
		case <-ticker.C:
			e.extend()
		}
	}
}

func (e *ackExtender) extend() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for m := range e.msgs {
		// InProgress only writes to the connection's buffer. If it is lost, the message
		// is redelivered, which Begin and the agents' journals make harmless.
		_ = m.InProgress()
	}
}

// reconnected returns when the connection was last re-established, in store time, or
// the zero Time if it was never lost.
func (d *Deliverer) reconnected() time.Time {
	if at := d.reconnectedAt.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// recordReconnects records the time of each reconnection until ctx ends.
func (d *Deliverer) recordReconnects(ctx context.Context) {
	changes := d.cfg.Conn.StatusChanged(nats.CONNECTED)
	defer d.cfg.Conn.RemoveStatusListener(changes)
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-changes:
			if !open { // the connection is closed permanently
				return
			}
			now := d.cfg.Clock.Now()
			d.reconnectedAt.Store(&now)
		}
	}
}
