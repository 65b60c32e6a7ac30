package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/procfleet/procfleet"
)

// Config is how a dispatcher listens and what it allows. The zero Config is
// complete: [Config.WithDefaults] says what it stands for.
type Config struct {
	// Listen is the TCP address; default 127.0.0.1:8080.
	Listen string
	// AllowUnauthenticated permits a Listen that is not loopback although
	// callers are not authenticated.
	AllowUnauthenticated bool
	// Listener, if set, is served instead of one that Run binds to Listen,
	// which still says who can reach it. Run closes it.
	Listener net.Listener
	// Listening, if set, is called once with the address that was bound.
	Listening func(net.Addr)

	// Ready, if set, is asked by /readyz: nil means ready. It is given 5 s.
	Ready func(context.Context) error
	// Metrics serves /metrics; without it there is no such path.
	Metrics http.Handler

	Limits   Limits
	Timeouts Timeouts
	// Slack is what a computed deadline adds to the time that the operations
	// themselves may take; default 60 s.
	Slack time.Duration
	// Retention is how long a task is kept after its deadline; default 7 days.
	Retention time.Duration

	Log    logrus.FieldLogger // default: logrus' standard logger
	Meter  metric.Meter       // default: measures nothing
	Tracer trace.Tracer       // default: passes the caller's trace on
	// Reached, if set, is told each Point of an acceptance as it is passed;
	// tests end the process there.
	Reached func(point string)
}

// Points at which [Config].Reached is called.
const (
	PointStored    = "dispatcher.stored"    // the task is stored, nothing queued
	PointPublished = "dispatcher.published" // every chunk is queued, nothing noted
)

// Limits bound what one request may cost.
type Limits struct {
	Body      int64 // bytes of a request body; default 40 MiB
	Items     int   // processes times hosts in one request; default 200,000
	BigBodies int   // bodies above 1 MiB that are worked on at once; default 4
}

// Timeouts bound how long anything is waited for.
type Timeouts struct {
	Header time.Duration // to read the header of a request; default 10 s
	Read   time.Duration // to read a whole request; default 60 s
	Write  time.Duration // to write an answer; default 5 min
	Idle   time.Duration // of a connection between requests; default 2 min
	// Accept bounds storing and queueing, which go on when the caller has
	// gone away, and then, once more, taking an acceptance back; default 10 s.
	Accept time.Duration
	Query  time.Duration // to read the store for one answer; default 60 s
	// Drain is how long requests may go on when the dispatcher stops; default 15 s.
	Drain time.Duration
}

// WithDefaults returns c with every zero field filled in.
func (c Config) WithDefaults() Config {
	orDefault(&c.Listen, "127.0.0.1:8080")
	orDefault(&c.Limits.Body, 40<<20)
	orDefault(&c.Limits.Items, 200_000)
	orDefault(&c.Limits.BigBodies, 4)
	orDefault(&c.Timeouts.Header, 10*time.Second)
	orDefault(&c.Timeouts.Read, time.Minute)
	orDefault(&c.Timeouts.Write, 5*time.Minute)
	orDefault(&c.Timeouts.Idle, 2*time.Minute)
	orDefault(&c.Timeouts.Accept, 10*time.Second)
	orDefault(&c.Timeouts.Query, time.Minute)
	orDefault(&c.Timeouts.Drain, 15*time.Second)
	orDefault(&c.Slack, time.Minute)
	orDefault(&c.Retention, 7*24*time.Hour)
	if c.Log == nil {
		c.Log = logrus.StandardLogger()
	}
	if c.Meter == nil {
		c.Meter = metricnoop.NewMeterProvider().Meter("dispatcher")
	}
	if c.Tracer == nil {
		c.Tracer = tracenoop.NewTracerProvider().Tracer("dispatcher")
	}
	if c.Reached == nil {
		c.Reached = func(string) {}
	}
	return c
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate says what is wrong with a Config that has its defaults.
func (c Config) Validate() error {
	errs := []error{c.validateListen()}
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"limits.body", c.Limits.Body},
		{"limits.items", int64(c.Limits.Items)},
		{"limits.big_bodies", int64(c.Limits.BigBodies)},
		{"timeouts.header", int64(c.Timeouts.Header)},
		{"timeouts.read", int64(c.Timeouts.Read)},
		{"timeouts.write", int64(c.Timeouts.Write)},
		{"timeouts.idle", int64(c.Timeouts.Idle)},
		{"timeouts.accept", int64(c.Timeouts.Accept)},
		{"timeouts.query", int64(c.Timeouts.Query)},
		{"timeouts.drain", int64(c.Timeouts.Drain)},
		{"slack", int64(c.Slack)},
		{"retention", int64(c.Retention)},
	} {
		if n.value < 0 {
			errs = append(errs, fmt.Errorf("dispatcher: %s is negative", n.name))
		}
	}
	if c.Slack > procfleet.MaxTimeout {
		errs = append(errs, fmt.Errorf("dispatcher: slack is more than %s, the longest that a task may take", procfleet.MaxTimeout))
	}
	return errors.Join(errs...)
}

func (c Config) validateListen() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("dispatcher: listen address %q is not of the form host:port, for example 127.0.0.1:8080: %w", c.Listen, err)
	}
	if !loopback(host) && !c.AllowUnauthenticated {
		return fmt.Errorf("dispatcher: refusing to listen on %s: callers are not authenticated, and whoever reaches this address "+
			"could run commands on every host; listen on 127.0.0.1, or give --allow-unauthenticated on a test network", c.Listen)
	}
	return nil
}

// loopback reports whether only this machine can reach a listener on host.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
