package simulate

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
)

const (
	// connecting is the maximum number of concurrent connection attempts. More attempts
	// could overflow the accept queue of the server.
	connecting = 200
	// reconnectShare times the number of connections is the time over which the fleet
	// spreads its reconnects.
	reconnectShare = time.Millisecond
)

// connection is a NATS connection shared by several agents.
type connection struct {
	*nats.Conn
	inbox string // subject prefix of receipts; the message number follows
}

func (c *connection) close() {
	if c.Conn != nil {
		c.Close()
	}
}

// connect opens all connections and waits until the server has processed all subscriptions.
func (f *Fleet) connect(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(connecting)
	for n := range f.conns {
		group.Go(func() error { return f.open(ctx, n) })
	}
	return group.Wait()
}

// open opens connection n and subscribes its agents.
func (f *Fleet) open(ctx context.Context, n int) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c, l := &f.conns[n], f.links[n%len(f.links)]
	c.Conn, err = natsconn.Connect(natsconn.Config{
		URL: f.cfg.URL, InProcess: f.cfg.InProcess, TLS: f.cfg.TLS, Credentials: f.cfg.Credentials, InboxPrefix: natsauth.ServerInbox,
		Name: fmt.Sprintf("simulate-%d", n), Log: f.cfg.Log,
		ReconnectJitter: time.Duration(len(f.conns)) * reconnectShare,
	})
	if err != nil {
		return err
	}
	c.inbox = c.NewInbox() + "."
	if _, err := c.ChanSubscribe(c.inbox+"*", l.receipts); err != nil {
		return fmt.Errorf("subscribe to receipts: %w", err)
	}
	for i := n; i < len(f.agents); i += len(f.conns) {
		subject := f.agents[i].subject
		if _, err := c.ChanQueueSubscribe(subject, agentproto.AgentQueue, l.commands); err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
	}
	return f.listening(ctx, c)
}

// listening waits until the server has processed every subscription of c.
func (f *Fleet) listening(ctx context.Context, c *connection) error {
	for {
		err := c.FlushTimeout(receiptTimeout)
		if err == nil {
			return nil
		}
		f.cfg.Log.WithError(err).Warn("waiting for NATS")
		select {
		case <-ctx.Done():
			return fmt.Errorf("connect to NATS at %q: %w", f.cfg.URL, err)
		case <-time.After(retryEvery):
		}
	}
}
