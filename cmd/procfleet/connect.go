package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/cmd/internal/connflags"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// backends are the open connections of a dispatcher or worker.
type backends struct {
	conn  *nats.Conn
	js    jetstream.JetStream
	bus   *bus.Bus
	store stores.Full
	keys  func() *fleetkey.Ring
	// natsConfig is the template for further connections to the same servers.
	natsConfig natsconn.Config
	embedded   *natsembed.Server   // nil for an external NATS
	users      *natsauth.Authority // authority of the embedded NATS; nil if NATS accepts every client
	streams    bus.Options

	stopKeeping func() // stops keepStreams and waits for its end
}

// waiter is called with the server for which a role waits, and the cause, or nil if the
// cause is still unknown.
type waiter func(server string, why error)

// connect connects a role to NATS and Redis as set by the flags, and waits for both
// until ctx ends.
func (f *backendFlags) connect(ctx context.Context, name string, p *daemon.Process) (*backends, error) {
	cfg, err := f.natsConfig(name, p)
	if err != nil {
		return nil, err
	}
	b, err := connectBus(ctx, cfg, f, p.WaitFor)
	if err != nil {
		return nil, err
	}
	if err := f.openRedis(ctx, b, p); err != nil {
		b.close(p.Log)
		return nil, err
	}
	return b, nil
}

// connectBus connects to NATS and waits for the streams until ctx ends: roles and
// servers start in any order.
func connectBus(ctx context.Context, cfg natsconn.Config, f *backendFlags, wait waiter) (*backends, error) {
	keys, err := connflags.OpenFleetKey(ctx, f.fleetKey, cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("--fleet-key: %w", err)
	}
	b := &backends{natsConfig: cfg, streams: f.streams(), keys: keys}
	reconnected := make(chan struct{}, 1)
	cfg.OnReconnect = func() {
		select {
		case reconnected <- struct{}{}:
		default: // a reconnection is already pending
		}
	}
	if b.conn, err = natsconn.Connect(cfg); err != nil {
		return nil, fmt.Errorf("--nats: %w", err)
	}
	if b.js, err = bus.JetStream(b.conn); err != nil {
		b.conn.Close()
		return nil, err
	}
	if err := b.ensure(ctx, cfg.Log, wait); err != nil {
		server := b.conn.ConnectedUrlRedacted()
		b.conn.Close()
		return nil, fmt.Errorf("prepare the streams at %q: %w", server, err)
	}
	b.bus = bus.New(b.js)
	b.bus.Use(keys)
	b.keepStreams(ctx, reconnected, cfg.Log)
	return b, nil
}

func (b *backends) ensure(ctx context.Context, log logrus.FieldLogger, wait waiter) error {
	if err := awaitNATS(ctx, b.conn, wait); err != nil {
		return err
	}
	wait("JetStream", nil)
	return retryUnavailable(ctx, log, "JetStream", wait, func() error { return bus.Ensure(ctx, b.js, b.streams) })
}

// readyPoll is the interval of checks whether a connection or role is ready.
const readyPoll = 20 * time.Millisecond

// awaitNATS waits until NATS is connected; natsconn logs failed attempts.
func awaitNATS(ctx context.Context, conn *nats.Conn, wait waiter) error {
	for {
		cause := natsconn.Unavailable(conn)
		if cause == nil {
			return nil
		}
		wait("NATS", cause)
		if err := pause(ctx, readyPoll); err != nil {
			return err
		}
	}
}

// pause waits for d. If ctx ends first, it returns the cause.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// connectBriefly connects a command that only queries NATS. Errors are returned, not logged.
func connectBriefly(ctx context.Context, cfg natsconn.Config) (*nats.Conn, error) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	cfg.Log = log
	conn, err := natsconn.Connect(cfg)
	if err != nil {
		return nil, fmt.Errorf("--nats: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, natsPatience)
	defer cancel()
	var cause error
	if awaitNATS(ctx, conn, func(_ string, why error) { cause = why }) != nil {
		conn.Close()
		return nil, fmt.Errorf("NATS at %s unavailable: %w", cfg.URL, cause)
	}
	return conn, nil
}

// natsPatience limits the wait of a command for a NATS connection, or for the first reply.
const natsPatience = 10 * time.Second

// keepStreams recreates missing streams after each reconnection: a broker that lost its
// disk restarts empty, and the sweep needs the streams to requeue chunks.
func (b *backends) keepStreams(ctx context.Context, reconnected <-chan struct{}, log logrus.FieldLogger) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-reconnected:
			}
			if err := b.ensure(ctx, log, func(string, error) {}); err != nil && ctx.Err() == nil {
				log.WithError(err).Error("stream setup failed after the reconnect")
			}
		}
	})
	b.stopKeeping = func() { cancel(); wg.Wait() }
}

// openRedis opens the Redis store, and waits for Redis until ctx ends.
func (f *backendFlags) openRedis(ctx context.Context, b *backends, p *daemon.Process) error {
	opt := f.redisOptions(p.Log)
	var err error
	if opt.TLS, err = f.redisTLS.Open(p.Log); err != nil {
		return err
	}
	p.WaitFor("Redis", nil)
	return retryUnavailable(ctx, opt.Log, "Redis", p.WaitFor, func() error {
		store, err := stores.OpenRedis(ctx, opt)
		if err == nil {
			b.store = store
		}
		return err
	})
}

func (b *backends) close(log logrus.FieldLogger) {
	b.stopKeeping()
	if b.store != nil {
		if err := b.store.Close(); err != nil {
			log.WithError(err).Warn("store not closed cleanly")
		}
	}
	b.conn.Close()
	if b.embedded != nil {
		b.embedded.Shutdown()
	}
}

// ready returns an error that names every unavailable backend, for /readyz.
func (b *backends) ready(ctx context.Context) error {
	var errs []error
	if cause := natsconn.Unavailable(b.conn); cause != nil {
		errs = append(errs, fmt.Errorf("not connected to NATS: %w", cause))
	}
	if _, err := b.store.Now(ctx); err != nil {
		errs = append(errs, fmt.Errorf("task store unavailable: %w", err))
	}
	return errors.Join(errs...)
}

// waitReminder is the interval of log lines while a server is unavailable. If the cause
// changes, the interval is waitChange: the cause may alternate between timeouts and
// refused connections.
const (
	waitReminder = time.Minute
	waitChange   = 5 * time.Second
)

// retryUnavailable calls try until the server is available or an error is permanent. If
// ctx ends, it returns the cause.
func retryUnavailable(ctx context.Context, log logrus.FieldLogger, server string, wait waiter, try func() error) error {
	var logged time.Time
	var reason string
	for {
		err := try()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !unavailable(err):
			return err
		}
		wait(server, err)
		due := waitReminder
		if err.Error() != reason {
			due = waitChange
		}
		if time.Since(logged) >= due {
			logged, reason = time.Now(), err.Error()
			log.WithError(err).WithField("server", server).Warn("server unavailable, waiting")
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// unlessStopped returns nil for an error that is the cause of ctx: stopping a role that
// waits for servers is no failure.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

func unavailable(err error) bool {
	return errors.Is(err, taskstore.ErrUnavailable) || errors.Is(err, bus.ErrUnavailable)
}
