// Package bench contains the benchmarks of procfleet. Each benchmark measures the system
// and, in the same run, a floor: the unavoidable calls to NATS and Redis, made directly
// without procfleet. Roles, servers and simulated agents are separate processes, as in
// production.
package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/tlsfiles"
)

// Config holds the settings shared by all benchmarks. Log is required.
type Config struct {
	// NATS and Redis are the URLs of running servers. With Start the benchmark starts both
	// servers instead.
	NATS, Redis string
	Start       bool
	Secure      Secure // security features of the servers that Start starts
	// Procfleet is the path of the procfleet program that runs the roles; default: the
	// program procfleet in the directory of this program.
	Procfleet string
	// NATSTLS, RedisTLS, NATSCreds and FleetKey configure access to servers that the
	// benchmark does not start.
	NATSTLS, RedisTLS   tlsflags.Client
	NATSCreds, FleetKey string
	Runs                int // repetitions of each measurement, at least 1; tables show the medians
	Log                 logrus.FieldLogger
}

// Common returns c, which gives access to the Config embedded in a benchmark.
func (c *Config) Common() *Config { return c }

// Validate reports all invalid settings.
func (c Config) Validate() error {
	return errors.Join(c.checkSecure(), atLeast("--runs", c.Runs, 1))
}

func atLeast(flag string, value, least int) error {
	if value < least {
		return fmt.Errorf("%s: %d is less than %d", flag, value, least)
	}
	return nil
}

// lab holds the processes and connections of a benchmark.
type lab struct {
	Config
	plant *plant
	conn  *nats.Conn
	js    jetstream.JetStream
	redis *redis.Client

	natsTLS, redisTLS *tlsfiles.Client
	natsAuth          string // directory of the keys and credentials of the started NATS server
}

// inLab opens a lab, measures the tables of a report in it, and closes the lab.
func inLab(ctx context.Context, cfg Config, measure func(*lab) ([]*Table, error)) (report Report, err error) {
	l := &lab{Config: cfg}
	if l.plant, err = newPlant(cfg.Procfleet); err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.open(ctx); err != nil {
		return report, err
	}
	tables, err := measure(l)
	if err != nil {
		return report, errors.Join(err, l.plant.failures())
	}
	return l.report(ctx, tables...), nil
}

func (l *lab) open(ctx context.Context) (err error) {
	if l.Start {
		if err := l.secure(); err != nil {
			return err
		}
		if err := l.startServers(ctx); err != nil {
			return err
		}
	}
	if err := l.openNATS(); err != nil {
		return err
	}
	if l.redisTLS, err = l.RedisTLS.Open(l.Log); err != nil {
		return err
	}
	options, err := redis.ParseURL(l.Redis)
	if err != nil {
		return fmt.Errorf("redis URL: %w", err)
	}
	if options.TLSConfig != nil && l.redisTLS != nil {
		options.TLSConfig.RootCAs, options.TLSConfig.Certificates = l.redisTLS.Config().RootCAs, l.redisTLS.Config().Certificates
	}
	l.redis = redis.NewClient(options)
	if err := l.redis.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("no Redis at %s: %w", options.Addr, err)
	}
	return nil
}

// openNATS connects to NATS but not to Redis.
func (l *lab) openNATS() (err error) {
	if l.natsTLS, err = l.NATSTLS.Open(l.Log); err != nil {
		return err
	}
	if l.conn, err = l.connect(); err != nil {
		return err
	}
	if err := l.conn.FlushTimeout(patience); err != nil {
		return fmt.Errorf("no NATS at %s: %w", l.NATS, err)
	}
	l.js, err = bus.JetStream(l.conn)
	return err
}

// connect opens a new connection to NATS.
func (l *lab) connect() (*nats.Conn, error) {
	cfg := natsconn.Config{URL: l.NATS, TLS: l.natsTLS, InboxPrefix: natsauth.ServerInbox, Name: "bench", Log: l.Log}
	if l.NATSCreds != "" {
		cfg.Credentials = func() ([]byte, error) { return natsauth.ReadCredentials(l.NATSCreds) }
	}
	return natsconn.Connect(cfg)
}

// openStore opens the task store and the catalog in Redis.
func (l *lab) openStore(ctx context.Context) (*stores.Redis, error) {
	return stores.OpenRedis(ctx, redisconn.Options{URL: l.Redis, TLS: l.redisTLS, Log: l.Log})
}

func (l *lab) close() error {
	if l.redis != nil {
		_ = l.redis.Close()
	}
	if l.conn != nil {
		l.conn.Close()
	}
	return l.plant.close()
}

// together calls do once for each i from 0 to n-1, from the given number of goroutines,
// and waits for all calls. After an error it starts no further call and returns the first
// error.
func together(ctx context.Context, n, goroutines int, do func(ctx context.Context, goroutine, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for g := range min(n, goroutines) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(ctx, g, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
