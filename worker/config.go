package worker

import (
	"cmp"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/destination"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/internal/tlsfiles"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/collect"
	"github.com/procfleet/procfleet/worker/deliver"
	"github.com/procfleet/procfleet/worker/hosts"
	"github.com/procfleet/procfleet/worker/notify"
	"github.com/procfleet/procfleet/worker/release"
	"github.com/procfleet/procfleet/worker/sweep"
)

// Store has the calls to a task store and a catalog that a worker uses.
type Store interface {
	collect.Store
	deliver.Store
	hosts.Store
	notify.Store
	release.Store
	sweep.Store
	taskstore.Clock

	hosts.Catalog
	release.Registrar
	sweep.Registrar
}

// Config holds the dependencies and settings of a worker. The caller closes Conn and
// Store.
type Config struct {
	// ID identifies this worker as a lease holder and must be unique; default a random
	// UUID.
	ID string
	// Version is the build version that dispatchers show; default "dev".
	Version string
	Conn    *nats.Conn
	Bus     *bus.Bus
	Store   Store
	// Keys returns the fleet's current keys, which sign commands and verify messages of
	// agents; by default there are none, and nothing is signed or verified.
	Keys func() *fleetkey.Ring
	// Audit records the outcomes of tasks; nil records nothing.
	Audit *audit.Log
	// CallbackTLS has the certificates for callbacks to https URLs; nil means the
	// system's certificate authorities and no client certificate.
	CallbackTLS *tlsfiles.Client
	// Receivers restricts the addresses of callbacks.
	Receivers destination.Policy
	// Log defaults to a logger that writes to standard error.
	Log logrus.FieldLogger
	// Meter creates the metrics; default a meter that discards them.
	Meter metric.Meter
	// Tracer creates the spans of this worker, AgentTracer the spans of operations that
	// agents report; nil creates none. Trace contexts of tasks are always forwarded.
	Tracer, AgentTracer trace.Tracer
	// Reached, if not nil, is called at each named point of the parts, such as
	// deliver.PointBegun; tests kill the process there.
	Reached func(point string)

	Limits Limits
	Timing Timing
}

// Limits bound the concurrent work of a worker. A zero field means its default.
type Limits struct {
	SmallChunks int // chunks of small tasks in flight; default 128
	BigChunks   int // chunks of big tasks in flight, over all lanes; default 12
	Items       int // items in flight, for small and for big tasks each; default 4096
	Parked      int // items of parked chunks, plus 16 per chunk; default 65536
	CollectMax  int // messages in one batch of results; default 500
	SweepTasks  int // tasks visited in one round of a shard; default 256
	SweepItems  int // items of tasks being repaired by the sweep; default 16384
	Notifiers   int // concurrent batches of completion notifications; default 2
}

// Timing holds all durations of a worker. A zero field means its default, which suits
// production; tests use shorter durations.
type Timing struct {
	Deliver deliver.Timing
	Sweep   sweep.Timing

	// Pull is how long one pull request for chunks waits at the NATS server; default
	// 3 s. After an outage of the server, chunks are delayed by at most Pull + 1 s.
	Pull time.Duration
	// PresenceLinger is how long a batch of announcements waits for more after its
	// first; default 20 ms.
	PresenceLinger time.Duration
	// ReportLinger is how long a batch of agents' reports waits for more after its
	// first; default 250 ms.
	ReportLinger time.Duration
	// RetryMin and RetryMax bound the jittered pause between retries during an outage;
	// default 50 ms and 3 s. StoreCall is the timeout of one store call; default 10 s.
	RetryMin, RetryMax, StoreCall time.Duration
	// ClockSync is the interval at which the store's clock is read; default 10 s.
	ClockSync time.Duration
	// Callback is the timeout of one callback; default 5 s. CallbackFor is how long
	// after a task's end its callback is retried, while the store has the task; default
	// 1 h.
	Callback, CallbackFor time.Duration
	// Drain is how long Run continues its chunks and messages after its context has
	// ended; default 10 s.
	Drain time.Duration
}

// WithDefaults returns c with a default in every zero field that has one.
func (c Config) WithDefaults() Config {
	c.ID = cmp.Or(c.ID, uuid.NewString())
	c.Version = cmp.Or(c.Version, "dev")
	if c.Keys == nil {
		c.Keys = func() *fleetkey.Ring { return nil }
	}
	if c.Log == nil {
		c.Log = logrus.New()
	}
	if c.Meter == nil {
		c.Meter = noop.Meter{}
	}
	if c.Reached == nil {
		c.Reached = func(string) {}
	}
	for _, l := range c.Limits.limits() {
		*l.value = cmp.Or(*l.value, l.defaultValue)
	}
	c.Timing = c.Timing.withDefaults()
	return c
}

// limits returns pointers to the fields of l, with their names and defaults.
func (l *Limits) limits() []limit {
	return []limit{
		{"SmallChunks", &l.SmallChunks, 128},
		{"BigChunks", &l.BigChunks, 12},
		{"Items", &l.Items, 4096},
		{"Parked", &l.Parked, 65536},
		{"CollectMax", &l.CollectMax, 500},
		{"SweepTasks", &l.SweepTasks, 256},
		{"SweepItems", &l.SweepItems, 16384},
		{"Notifiers", &l.Notifiers, 2},
	}
}

type limit struct {
	field        string
	value        *int
	defaultValue int
}

func (t Timing) withDefaults() Timing {
	const ms, s = time.Millisecond, time.Second
	return Timing{
		Deliver: t.Deliver.WithDefaults(), Sweep: t.Sweep.WithDefaults(),
		Pull:           cmp.Or(t.Pull, 3*s),
		PresenceLinger: cmp.Or(t.PresenceLinger, 20*ms),
		ReportLinger:   cmp.Or(t.ReportLinger, 250*ms),
		RetryMin:       cmp.Or(t.RetryMin, 50*ms),
		RetryMax:       cmp.Or(t.RetryMax, 3*s),
		StoreCall:      cmp.Or(t.StoreCall, 10*s),
		ClockSync:      cmp.Or(t.ClockSync, 10*s),
		Callback:       cmp.Or(t.Callback, 5*s),
		CallbackFor:    cmp.Or(t.CallbackFor, time.Hour),
		Drain:          cmp.Or(t.Drain, 10*s),
	}
}

// Validate returns an error that lists all invalid fields. Apply WithDefaults first.
func (c Config) Validate() error {
	var errs []error
	missing := func(field string, absent bool) {
		if absent {
			errs = append(errs, invalid.Fieldf(field, "is not set"))
		}
	}
	missing("Conn", c.Conn == nil)
	missing("Bus", c.Bus == nil)
	missing("Store", c.Store == nil)
	for _, l := range c.Limits.limits() {
		if *l.value < 1 {
			errs = append(errs, invalid.Fieldf("Limits."+l.field, "%d is too small; it must be at least 1", *l.value))
		}
	}
	if c.Timing.Deliver.AcceptWindow > deliver.MaxAcceptWindow {
		errs = append(errs, invalid.Fieldf("Timing.Deliver.AcceptWindow", "%v is too long; it must be at most %v", c.Timing.Deliver.AcceptWindow, deliver.MaxAcceptWindow))
	}
	return errors.Join(errs...)
}
