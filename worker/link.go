package worker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// link knows how this worker's own connection to the bus has been, so that
// its own absence is not taken for the hosts'.
type link struct {
	conn  *nats.Conn
	clock *clock
	back  atomic.Pointer[time.Time]
}

func (l *link) connected() bool { return l.conn.IsConnected() }

// reconnected is when the connection last came back, in store time; zero if
// it never was away.
func (l *link) reconnected() time.Time {
	if at := l.back.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// run watches the connection until ctx ends.
func (l *link) run(ctx context.Context) {
	changes := l.conn.StatusChanged(nats.CONNECTED)
	defer l.conn.RemoveStatusListener(changes)
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-changes:
			if !open { // the connection is closed for good
				return
			}
			now := l.clock.now()
			l.back.Store(&now)
		}
	}
}
