package worker

import (
	"cmp"
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/internal/tlsfiles"
	"github.com/procfleet/procfleet/taskstore"
)

// Store is what a worker needs of a task store.
type Store interface {
	taskstore.Delivery
	taskstore.SweepStore
	taskstore.Clock

	Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error

	Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
	Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error)
	Owners(ctx context.Context, id procfleet.TaskID, items []int) ([]procfleet.Host, error)
	Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) (page []procfleet.ItemResult, next string, err error)

	Announce(ctx context.Context, as []taskstore.Announcement) error
	Report(ctx context.Context, reports []catalog.Report) error
	Register(ctx context.Context, ds []catalog.Definition, replace bool) (existed [][]bool, err error)
	Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error)
	Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error)
	FreezesOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.Freeze, error)
	GroupsOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.HostGroups, error)
}

// Config is what a worker is made of. Conn, Bus and Store stay the caller's.
type Config struct {
	// ID names this worker as holder of leases; default a random UUID. Two
	// workers must not have the same.
	ID    string
	Conn  *nats.Conn
	Bus   *bus.Bus
	Store Store
	// Keys returns the fleet's keys as they are now, with which commands are
	// signed and agents believed; default nil, with which nothing is signed
	// and everything believed.
	Keys func() *fleetkey.Ring
	// Audit keeps how tasks ended; nil keeps nothing.
	Audit *audit.Log
	// CallbackTLS says with which files callbacks to https URLs are made; nil is
	// the system's certificates and none of our own.
	CallbackTLS *tlsfiles.Client
	// Receivers says which addresses callbacks may be sent to.
	Receivers Receivers
	// Log defaults to a logger that writes to standard error.
	Log logrus.FieldLogger
	// Meter makes the metrics; default none.
	Meter metric.Meter
	// Tracer makes the spans of this worker, AgentTracer those of what agents
	// report to it; default none, traces of tasks are passed on all the same.
	Tracer, AgentTracer trace.Tracer
	// Reached, if not nil, is told each [Point] as it is passed; tests kill
	// the process there.
	Reached func(point string)

	Limits Limits
	Timing Timing
}

// Limits bound what a worker holds at a time. A zero field is the default.
type Limits struct {
	SmallChunks int // in flight of small tasks; default 128
	BigChunks   int // in flight of big tasks, all lanes together; default 12
	Items       int // in flight of each of the two; default 4096
	Parked      int // items of chunks that stepped aside, each counting 16 more; default 65536
	CollectMax  int // messages in one batch of results; default 500
	SweepTasks  int // visits in one round of a shard; default 256
	SweepItems  int // items of tasks that the sweep repairs at a time; default 16384
	Notifiers   int // batches of ends notified at a time; default 2
}

// WithDefaults returns c with every zero field set.
func (c Config) WithDefaults() Config {
	c.ID = cmp.Or(c.ID, uuid.NewString())
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
	c.Limits = c.Limits.withDefaults()
	c.Timing = c.Timing.withDefaults()
	return c
}

func (l Limits) withDefaults() Limits {
	return Limits{
		SmallChunks: cmp.Or(l.SmallChunks, 128),
		BigChunks:   cmp.Or(l.BigChunks, 12),
		Items:       cmp.Or(l.Items, 4096),
		Parked:      cmp.Or(l.Parked, 65536),
		CollectMax:  cmp.Or(l.CollectMax, 500),
		SweepTasks:  cmp.Or(l.SweepTasks, 256),
		SweepItems:  cmp.Or(l.SweepItems, 16384),
		Notifiers:   cmp.Or(l.Notifiers, 2),
	}
}

// Validate reports everything that is wrong with c, which has its defaults.
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
	for _, l := range []struct {
		field string
		value int
	}{
		{"SmallChunks", c.Limits.SmallChunks},
		{"BigChunks", c.Limits.BigChunks},
		{"Items", c.Limits.Items},
		{"Parked", c.Limits.Parked},
		{"CollectMax", c.Limits.CollectMax},
		{"SweepTasks", c.Limits.SweepTasks},
		{"SweepItems", c.Limits.SweepItems},
		{"Notifiers", c.Limits.Notifiers},
	} {
		if l.value < 1 {
			errs = append(errs, invalid.Fieldf("Limits."+l.field, "%d is too small; it must be at least 1", l.value))
		}
	}
	if c.Timing.Ask.AcceptWindow > maxAcceptWindow {
		errs = append(errs, invalid.Fieldf("Timing.Ask.AcceptWindow", "%v is too long; it must be at most %v", c.Timing.Ask.AcceptWindow, maxAcceptWindow))
	}
	return errors.Join(errs...)
}

// Points at which [Config].Reached is called.
const (
	PointBegun        = "worker.begun"         // a chunk was begun, nothing asked
	PointAsked        = "worker.asked"         // its commands are on their way
	PointBeforeDone   = "worker.before-done"   // all hosts answered, nothing stored
	PointAfterDone    = "worker.after-done"    // stored as done, not acknowledged
	PointCollecting   = "worker.collecting"    // results received, not stored
	PointCollected    = "worker.collected"     // results stored, no receipt sent
	PointBeforeNotify = "worker.before-notify" // a task ended, its event not sent
)
