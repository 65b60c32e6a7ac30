package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/redisstore"
)

// backends are what dispatchers and workers stand on.
type backends struct {
	conn  *nats.Conn
	js    jetstream.JetStream
	bus   *bus.Bus
	store taskstore.Store
	// natsConfig opens further connections to the same servers.
	natsConfig natsconn.Config
}

// connectBus connects to NATS and waits, until ctx ends, for the streams to be
// there: roles and servers start in any order.
func connectBus(ctx context.Context, cfg natsconn.Config) (*backends, error) {
	conn, err := natsconn.Connect(cfg)
	if err != nil {
		return nil, err
	}
	js, err := natsconn.JetStream(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	err = patiently(ctx, cfg.Log, "waiting for NATS", func() error { return bus.Ensure(ctx, js, bus.Options{}) })
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("prepare the streams at %s: %w", cfg.URL, err)
	}
	return &backends{conn: conn, js: js, bus: bus.New(js), natsConfig: cfg}, nil
}

// openRedis adds the Redis store, for which it waits until ctx ends.
func (b *backends) openRedis(ctx context.Context, url string, log logrus.FieldLogger) error {
	return patiently(ctx, log, "waiting for Redis", func() error {
		store, err := redisstore.Open(ctx, redisstore.Options{URL: url, Log: log})
		if err == nil {
			b.store = store
		}
		return err
	})
}

// close releases what is open.
func (b *backends) close(log logrus.FieldLogger) {
	if b.store != nil {
		if err := b.store.Close(); err != nil {
			log.WithError(err).Warn("store not closed in good order")
		}
	}
	b.conn.Close()
}

// ready is what /readyz of a dispatcher asks.
func (b *backends) ready(ctx context.Context) error {
	if _, err := b.store.Now(ctx); err != nil {
		return err
	}
	if !b.conn.IsConnected() {
		return errors.New("not connected to NATS")
	}
	return nil
}

// patiently repeats try while it fails for want of a server.
func patiently(ctx context.Context, log logrus.FieldLogger, what string, try func() error) error {
	const pause = time.Second
	for {
		err := try()
		if err == nil || !away(err) || ctx.Err() != nil {
			return err
		}
		log.WithError(err).Warn(what)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

func away(err error) bool {
	return errors.Is(err, taskstore.ErrUnavailable) || errors.Is(err, bus.ErrAway)
}
