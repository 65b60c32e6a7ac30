package deliver

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/worker/storecall"
)

// ackExtender keeps the messages that this worker handles in progress at the
// server, so that none is redelivered to another worker meanwhile.
type ackExtender struct {
	shortened chan struct{} // interval became shorter

	mu       sync.Mutex
	interval time.Duration // between extensions; zero until a consumer is known
	msgs     map[jetstream.Msg]struct{}
}

func newAckExtender() *ackExtender {
	return &ackExtender{shortened: make(chan struct{}, 1), msgs: map[jetstream.Msg]struct{}{}}
}

// adjust sets the interval to a third of a consumer's ack wait, if that is shorter.
func (e *ackExtender) adjust(ackWait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	interval := ackWait / 3
	if interval <= 0 || e.interval > 0 && e.interval <= interval {
		return
	}
	e.interval = interval
	select {
	case e.shortened <- struct{}{}:
	default:
	}
}

func (e *ackExtender) current() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.interval
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

// run extends until ctx ends.
func (e *ackExtender) run(ctx context.Context) {
	ticker := time.NewTicker(time.Hour) // there are no messages before the first consumer
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.shortened:
			ticker.Reset(e.current())
		case <-ticker.C:
			e.extend()
		}
	}
}

func (e *ackExtender) extend() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for m := range e.msgs {
		// Only publishes into the connection's buffer. If it is lost, the message is
		// redelivered, which Begin and the agents' journals make harmless.
		_ = m.InProgress()
	}
}

// connection observes this worker's own connection to the broker, so that a
// disconnected worker does not blame the hosts.
type connection struct {
	conn          *nats.Conn
	clock         *storecall.Clock
	reconnectedAt atomic.Pointer[time.Time]
}

// reconnected is when the connection was last re-established, in store time; zero
// if it never was lost.
func (c *connection) reconnected() time.Time {
	if at := c.reconnectedAt.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// run observes the connection until ctx ends.
func (c *connection) run(ctx context.Context) {
	changes := c.conn.StatusChanged(nats.CONNECTED)
	defer c.conn.RemoveStatusListener(changes)
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-changes:
			if !open { // the connection is closed for good
				return
			}
			now := c.clock.Now()
			c.reconnectedAt.Store(&now)
		}
	}
}
