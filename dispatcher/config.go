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
	"github.com/procfleet/procfleet/internal/destination"
	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/internal/loopback"
	"github.com/procfleet/procfleet/internal/tlsfiles"
)

// Config configures a dispatcher: its listeners, its dependencies, and its limits. The
// zero Config is valid; [Config.WithDefaults] fills it in.
type Config struct {
	// Listen is the TCP address, or unix:PATH for a Unix socket; default
	// 127.0.0.1:8080.
	Listen string
	// AllowLocalUsers permits every account of this machine to call a Listen on
	// loopback. Without it, and without AppsFile, only root and the account that runs
	// the dispatcher may call. This restriction is enforced on Linux only.
	AllowLocalUsers bool
	// AllowUnauthenticated permits a Listen that is not loopback even if callers are
	// not authenticated.
	AllowUnauthenticated bool
	// AppsFile is the path of the file with the applications that may call; see package
	// apps. If it is set, callers that are not in the file are rejected, and Listen may
	// be any address. The dispatcher reads the file again when it changes.
	AppsFile string
	// NoConsole disables the console at /ui/, see package web. ConsoleKey encrypts its sessions; it has
	// 32 bytes, and nil is a random key. Dispatchers behind one address need the same key.
	NoConsole  bool
	ConsoleKey []byte
	// LoginURL is BlueKing's login server, which authenticates users by their
	// bk_token. Without it every bk_token is rejected.
	LoginURL string
	// LoginTLS holds the certificates for the login server; nil means the system's
	// certificate authorities and no client certificate.
	LoginTLS *tlsfiles.Client
	// TrustedESB holds the addresses of ESB servers in front of the dispatcher. Calls
	// to GSE and Job from these addresses need no proof of their application.
	TrustedESB []netip.Prefix
	// Listener, if set, is served instead of a listener on Listen. Set Listen
	// nevertheless: it determines who can reach the dispatcher. Run closes Listener.
	Listener net.Listener
	// Socket, if set, is a Unix socket that is served in addition. Run closes it.
	Socket net.Listener
	// Listening, if set, is called once with the address on which Run listens.
	Listening func(net.Addr)

	// Ready, if set, reports the readiness for /readyz: nil means ready. Its context
	// ends after 5 s.
	Ready func(context.Context) error
	// Version is the build version that /openapi.json shows; default "dev".
	Version string
	// Metrics serves /metrics; without it /metrics does not exist.
	Metrics http.Handler

	// Hints, if set, report changes of watched tasks immediately. Without them a
	// watcher receives a change within about 2 s.
	Hints Hints
	// Agents, if set, notifies agents that their settings changed. Without it they
	// poll, every 12 minutes at most.
	Agents Agents
	// Events, if set, reads the events that agents publish; without it the endpoint for
	// events returns an error.
	Events HostEvents
	// TaskFeed, if set, reads the events of tasks; without it the endpoint for them returns
	// status 503.
	TaskFeed TaskFeed
	// Webhooks restricts the addresses to which events are sent, and WebhookTLS has the certificates for
	// https URLs; nil means the system's certificate authorities and no client certificate. Events
	// are sent only with a TaskFeed.
	Webhooks   destination.Policy
	WebhookTLS *tlsfiles.Client
	// AuditLog, if set, reads the audit log; without it the endpoint for the audit log returns
	// an error.
	AuditLog AuditLog
	// Broker, if set, reports the state of NATS and of the workers; without it the endpoint for
	// the health of the parts returns an error.
	Broker Broker
	// Outputs, if set, reads the output of processes; without it the endpoint for output
	// returns an error.
	Outputs Outputs
	// Submissions, if set, is the bus on which producers publish operations. The
	// dispatcher accepts them like operations sent over HTTP.
	Submissions *bus.Bus

	// Audit records calls with their callers; nil disables the record.
	Audit *audit.Log

	Limits   Limits
	Timeouts Timeouts
	// Slack is added to the computed duration of the operations to get the deadline of
	// a task without a timeout; default 60 s.
	Slack time.Duration
	// Retention is how long a task is stored after its deadline; default 7 days.
	Retention time.Duration

	Log    logrus.FieldLogger // default: logrus' standard logger
	Meter  metric.Meter       // default: no metrics
	Tracer trace.Tracer       // default: propagates the caller's trace without recording spans
	// Reached, if set, is called at each Point of an acceptance. Tests terminate the
	// process there.
	Reached func(point string)
}

// Points at which [Config].Reached is called.
const (
	PointStored     = "dispatcher.stored"     // the task is stored; nothing is queued
	PointAudited    = "dispatcher.audited"    // the audit record of the task is stored; nothing is queued
	PointRegistered = "dispatcher.registered" // the specs of the task are registered; nothing is queued
	PointUndone     = "dispatcher.undone"     // an undo is accepted, the undone task does not name it
	PointFired      = "dispatcher.fired"      // the task of a schedule is accepted, the schedule does not name it
	PointRetried    = "dispatcher.retried"    // a retry is accepted, the retried task does not name it
	PointPublished  = "dispatcher.published"  // every chunk is queued; the task is not marked as dispatched
	PointReleased   = "dispatcher.released"   // a release is queued for a process; its registration still exists
	PointSubmitted  = "dispatcher.submitted"  // a published submission is accepted; its message is not acknowledged
	PointFailed     = "dispatcher.kept"       // a published submission is stored as failed; its message is not acknowledged
)

// Limits bounds the resources that requests may use.
type Limits struct {
	Body  int64 // bytes of a request body; default 40 MiB
	Items int   // processes × hosts in one request; default 200,000
	// BigBodies is how many bodies above 1 MiB are processed at the same time; default
	// 4.
	BigBodies int
	// SmallBodies is how many bytes of smaller bodies are processed at the same time.
	// Each body counts at least 4 KiB. Default 8 MiB.
	SmallBodies int64
	// UnauthenticatedBodies is how many bytes are held at the same time of bodies that
	// contain the credentials of their callers. A larger body of such a caller is
	// rejected. Default: Body.
	UnauthenticatedBodies int64
	Watchers              int // concurrent streams of task events; default 10,000
	// Submissions is how many published submissions are processed at the same time;
	// default 8.
	Submissions int
}

// largestBody is the maximum of Limits.Body; it prevents overflows of sums.
const largestBody = 1 << 40

// Timeouts bounds every wait of the dispatcher.
type Timeouts struct {
	Header time.Duration // to read the header of a request; default 10 s
	Read   time.Duration // to read a whole request; default 60 s
	Write  time.Duration // to write a response; default 5 min
	Idle   time.Duration // for the next request on a connection; default 2 min
	// Accept bounds storing and queueing a task, which continue after the caller has
	// disconnected. It also bounds the rejection of the task after a failure. Default
	// 10 s.
	Accept time.Duration
	Query  time.Duration // to read the store for one response; default 60 s
	// Watcher bounds writing one event of a stream; a slower watcher is
	// disconnected. Default 30 s.
	Watcher time.Duration
	// Hold is how long the acceptance of a published submission is retried while the
	// store or the queue is unavailable. After that the message is redelivered. Default
	// 15 s.
	Hold time.Duration
	// Drain is how long requests may continue when the dispatcher stops; default 15 s.
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
	orDefault(&c.Limits.UnauthenticatedBodies, c.Limits.Body+largestStep) // plus one step, which is read to detect a body that is too large
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

// Validate returns all errors of a Config, joined. Call [Config.WithDefaults] first.
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
		errs = append(errs, invalid.Fieldf("Limits.Body", "%d bytes exceed the maximum of %d", c.Limits.Body, int64(largestBody)))
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
		return invalid.Fieldf("Listen", "refusing to listen on %s: callers are not authenticated, and any caller that reaches this address "+
			"could run commands on every host; name the applications that may call with --apps, listen on 127.0.0.1, "+
			"or give --allow-unauthenticated on a test network", c.Listen)
	}
	return nil
}

// validateCallers rejects authentication settings that are invalid or have no effect.
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

// onlyThisMachine reports whether Listen is reachable from this machine only.
func (c *Config) onlyThisMachine() bool {
	host, _, _ := net.SplitHostPort(c.Listen)
	return strings.HasPrefix(c.Listen, unixSocket) || loopback.Host(host)
}

// onlyOwnAccount reports whether only root and the account that runs the dispatcher may
// call.
func (c *Config) onlyOwnAccount() bool {
	return c.onlyThisMachine() && c.AppsFile == "" && !c.AllowLocalUsers && !c.AllowUnauthenticated
}
