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

// ackExtender sends in-progress acknowledgements for the messages that this worker
// handles, so that the server does not redeliver them to another worker.
type ackExtender struct {
	shortened chan struct{} // signals that interval became shorter

	mu       sync.Mutex
	interval time.Duration // pause between extensions; zero until a consumer is open
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

// run extends the ack wait of all messages periodically until ctx ends.
func (e *ackExtender) run(ctx context.Context) {
	ticker := time.NewTicker(time.Hour) // placeholder: no consumer is open yet, so there are no messages
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
		// InProgress only writes to the connection's buffer. If it is lost, the message
		// is redelivered, which Begin and the agents' journals make harmless.
		_ = m.InProgress()
	}
}

// connection records when this worker last reconnected to the broker, so that missing
// replies during a disconnect are not counted against the hosts.
type connection struct {
	conn          *nats.Conn
	clock         *storecall.Clock
	reconnectedAt atomic.Pointer[time.Time]
}

// reconnected returns when the connection was last re-established, in store time, or
// the zero Time if it was never lost.
func (c *connection) reconnected() time.Time {
	if at := c.reconnectedAt.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// run watches the connection until ctx ends.
func (c *connection) run(ctx context.Context) {
	changes := c.conn.StatusChanged(nats.CONNECTED)
	defer c.conn.RemoveStatusListener(changes)
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-changes:
			if !open { // the connection is closed permanently
				return
			}
			now := c.clock.Now()
			c.reconnectedAt.Store(&now)
		}
	}
}
