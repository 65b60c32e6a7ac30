package dispatcher

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/internal/loopback"
	"github.com/procfleet/procfleet/internal/tlsfiles"
)

// Config is how a dispatcher listens and what it allows. The zero Config is valid:
// [Config.WithDefaults] fills it in.
type Config struct {
	// Listen is the TCP address, or unix:PATH for a Unix socket; default
	// 127.0.0.1:8080.
	Listen string
	// AllowLocalUsers permits every account of this machine to call a Listen on
	// loopback. Without it, and without AppsFile, only the account that runs the
	// dispatcher and root may, which is enforced on Linux.
	AllowLocalUsers bool
	// AllowUnauthenticated permits a Listen that is not loopback although
	// callers are not authenticated.
	AllowUnauthenticated bool
	// AppsFile is the file of the applications that may call; see package
	// apps. With it other callers are refused, and Listen need not be loopback. It is
	// read again when it changes.
	AppsFile string
	// LoginURL is BlueKing's login server, which authenticates users by their
	// bk_token. Without it every bk_token is rejected.
	LoginURL string
	// LoginTLS has the certificates for the login server; nil is the system's
	// certificate authorities and no client certificate.
	LoginTLS *tlsfiles.Client
	// TrustedESB has the addresses of ESBs in front: they need not prove for which
	// application they call GSE and Job.
	TrustedESB []netip.Prefix
	// Listener, if set, is served instead of one that Run binds to Listen,
	// which still says who can reach it. Run closes it.
	Listener net.Listener
	// Socket, if set, is a Unix socket that is served beside it. Run closes it.
	Socket net.Listener
	// Listening, if set, is called once with the address that was bound.
	Listening func(net.Addr)

	// Ready, if set, is asked by /readyz: nil means ready. It is given 5 s.
	Ready func(context.Context) error
	// Version is the build's, as /openapi.json says it; default "dev".
	Version string
	// Metrics serves /metrics; without it there is no such path.
	Metrics http.Handler

	// Hints, if set, report changes of watched tasks immediately. Without them a
	// watcher receives a change within about 2 s.
	Hints Hints
	// Agents, if set, notifies agents that their settings changed. Without it they
	// poll, every 12 minutes at most.
	Agents Agents
	// Events, if set, reads the events of agents; without it the endpoint is unavailable.
	Events HostEvents
	// Submissions, if set, is where producers publish operations, which are
	// accepted like those that come over HTTP.
	Submissions *bus.Bus

	// Audit records calls and their callers; nil records nothing.
	Audit *audit.Log

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
	// Reached, if set, is called at each Point of an acceptance; tests end the
	// process there.
	Reached func(point string)
}

// Points at which [Config].Reached is called.
const (
	PointStored     = "dispatcher.stored"     // the task is stored, nothing queued
	PointAudited    = "dispatcher.audited"    // its audit record is stored, nothing queued
	PointRegistered = "dispatcher.registered" // its specs are registered, nothing queued
	PointPublished  = "dispatcher.published"  // every chunk is queued, not marked as dispatched
	PointReleased   = "dispatcher.released"   // a process to be unregistered is released, and still registered
	PointSubmitted  = "dispatcher.submitted"  // a published submission is accepted, not acknowledged
	PointKept       = "dispatcher.kept"       // a published submission is stored as failed, not acknowledged
)

// Limits bound what one request may cost.
type Limits struct {
	Body  int64 // bytes of a request body; default 40 MiB
	Items int   // processes times hosts in one request; default 200,000
	// BigBodies is how many bodies above 1 MiB are processed at once; default 4.
	BigBodies int
	// SmallBodies is how many bytes of smaller bodies are processed at once; each
	// counts 4 KiB at least. Default 8 MiB.
	SmallBodies int64
	// UnauthenticatedBodies is how many bytes are held at once of bodies that carry
	// their callers' credentials; larger bodies of such callers are rejected.
	// Default: Body.
	UnauthenticatedBodies int64
	Watchers              int // streams of task events at once; default 10,000
	// Submissions is how many published submissions are processed at once;
	// default 8.
	Submissions int
}

// largestBody is the upper limit of Limits.Body; it keeps sums from overflowing.
const largestBody = 1 << 40

// Timeouts bound every wait.
type Timeouts struct {
	Header time.Duration // to read the header of a request; default 10 s
	Read   time.Duration // to read a whole request; default 60 s
	Write  time.Duration // to write an answer; default 5 min
	Idle   time.Duration // of a connection between requests; default 2 min
	// Accept bounds storing and queueing, which go on when the caller has
	// disconnected, and after a failure, once more, rejecting the task; default 10 s.
	Accept time.Duration
	Query  time.Duration // to read the store for one answer; default 60 s
	// Watcher bounds writing one event of a stream; a slower watcher is
	// disconnected. Default 30 s.
	Watcher time.Duration
	// Hold is how long a published submission is retried while the store or the
	// queue is unavailable, before it is returned to be redelivered; default 15 s.
	Hold time.Duration
	// Drain is how long requests may go on when the dispatcher stops; default 15 s.
	Drain time.Duration
}

// WithDefaults returns c with every zero field filled in.
func (c Config) WithDefaults() Config {
	orDefault(&c.Listen, "127.0.0.1:8080")
	orDefault(&c.Version, "dev")
	orDefault(&c.Limits.Body, 40<<20)
	orDefault(&c.Limits.Items, 200_000)
	orDefault(&c.Limits.BigBodies, 4)
	orDefault(&c.Limits.SmallBodies, 8<<20)
	orDefault(&c.Limits.UnauthenticatedBodies, c.Limits.Body+largestStep) // the step that shows that a body is too large
	orDefault(&c.Limits.Watchers, 10_000)
	orDefault(&c.Limits.Submissions, 8)
	orDefault(&c.Timeouts.Header, 10*time.Second)
	orDefault(&c.Timeouts.Read, time.Minute)
	orDefault(&c.Timeouts.Write, 5*time.Minute)
	orDefault(&c.Timeouts.Idle, 2*time.Minute)
	orDefault(&c.Timeouts.Accept, 10*time.Second)
	orDefault(&c.Timeouts.Query, time.Minute)
	orDefault(&c.Timeouts.Watcher, 30*time.Second)
	orDefault(&c.Timeouts.Hold, 15*time.Second)
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

// Validate returns the errors of a Config that has its defaults.
func (c Config) Validate() error {
	errs := []error{c.validateListen(), c.validateCallers()}
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"Limits.Body", c.Limits.Body},
		{"Limits.Items", int64(c.Limits.Items)},
		{"Limits.BigBodies", int64(c.Limits.BigBodies)},
		{"Limits.SmallBodies", c.Limits.SmallBodies},
		{"Limits.UnauthenticatedBodies", c.Limits.UnauthenticatedBodies},
		{"Limits.Watchers", int64(c.Limits.Watchers)},
		{"Limits.Submissions", int64(c.Limits.Submissions)},
		{"Timeouts.Header", int64(c.Timeouts.Header)},
		{"Timeouts.Read", int64(c.Timeouts.Read)},
		{"Timeouts.Write", int64(c.Timeouts.Write)},
		{"Timeouts.Idle", int64(c.Timeouts.Idle)},
		{"Timeouts.Accept", int64(c.Timeouts.Accept)},
		{"Timeouts.Query", int64(c.Timeouts.Query)},
		{"Timeouts.Watcher", int64(c.Timeouts.Watcher)},
		{"Timeouts.Hold", int64(c.Timeouts.Hold)},
		{"Timeouts.Drain", int64(c.Timeouts.Drain)},
		{"Slack", int64(c.Slack)},
		{"Retention", int64(c.Retention)},
	} {
		if n.value < 0 {
			errs = append(errs, invalid.Fieldf(n.name, "%d is negative", n.value))
		}
	}
	if c.Limits.Body > largestBody {
		errs = append(errs, invalid.Fieldf("Limits.Body", "%d bytes are more than any memory holds: at most %d", c.Limits.Body, int64(largestBody)))
	}
	if c.Slack > procfleet.MaxTimeout {
		errs = append(errs, invalid.Fieldf("Slack", "%s is more than %s, the longest that a task may take", c.Slack, procfleet.MaxTimeout))
	}
	return errors.Join(errs...)
}

func (c Config) validateListen() error {
	if strings.HasPrefix(c.Listen, unixSocket) {
		return nil
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return invalid.Fieldf("Listen", "%q is not of the form host:port, for example 127.0.0.1:8080: %w", c.Listen, err)
	}
	if !loopback.Host(host) && c.AppsFile == "" && !c.AllowUnauthenticated {
		return invalid.Fieldf("Listen", "refusing to listen on %s: callers are not authenticated, and everyone who reaches this address "+
			"could run commands on every host; name the applications that may call with --apps, listen on 127.0.0.1, "+
			"or give --allow-unauthenticated on a test network", c.Listen)
	}
	return nil
}

// validateCallers rejects settings of authentication that have no effect.
func (c Config) validateCallers() error {
	var errs []error
	if c.LoginURL != "" {
		u, err := url.Parse(c.LoginURL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			errs = append(errs, invalid.Fieldf("LoginURL", "is no URL like https://login.example.com"))
		} else if c.AppsFile == "" {
			errs = append(errs, invalid.Fieldf("LoginURL", "has no effect without --apps: callers are not authenticated"))
		}
	}
	if len(c.TrustedESB) > 0 && c.AppsFile == "" {
		errs = append(errs, invalid.Fieldf("TrustedESB", "has no effect without --apps: callers are not authenticated"))
	}
	return errors.Join(errs...)
}

// unixSocket is the prefix of [Config].Listen that names a Unix socket.
const unixSocket = "unix:"

// onlyThisMachine reports whether no other machine can reach what Listen names.
func (c *Config) onlyThisMachine() bool {
	host, _, _ := net.SplitHostPort(c.Listen)
	return strings.HasPrefix(c.Listen, unixSocket) || loopback.Host(host)
}

// onlyOwnAccount reports whether of all accounts of this machine only the
// dispatcher's own and root may call.
func (c *Config) onlyOwnAccount() bool {
	return c.onlyThisMachine() && c.AppsFile == "" && !c.AllowLocalUsers && !c.AllowUnauthenticated
}
