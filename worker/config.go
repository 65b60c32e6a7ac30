package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

// Store is what a worker needs of a task store.
type Store interface {
	taskstore.Delivery
	taskstore.Duties
	taskstore.Clock

	Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error

	Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
	Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error)
	Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) (page []procfleet.ItemResult, next string, err error)

	Announce(ctx context.Context, as []taskstore.Announcement) error
	Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error)
}

// Config is what a worker is made of. Conn, Bus and Store stay the caller's.
type Config struct {
	// ID names this worker as holder of leases; default a random UUID. Two
	// workers must not have the same.
	ID    string
	Conn  *nats.Conn
	Bus   *bus.Bus
	Store Store
	// Log defaults to a logger that writes to standard error.
	Log logrus.FieldLogger
	// Meter makes the metrics; default none.
	Meter metric.Meter
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
	Parked      int // chunks that stepped aside, waiting for slow hosts; default 256
	CollectMax  int // messages in one batch of results; default 500
	SweepTasks  int // visits per shard and round; default 32
	Notifiers   int // ends of tasks told at a time; default 16
}

// Timing is every length of time that a worker goes by. A zero field is the
// default, which suits production; tests shorten them.
type Timing struct {
	// AcceptWindow is how far in the future accept_before lies; default 10 s,
	// which is also the most that agents may be told.
	AcceptWindow time.Duration
	// AcceptMargin is how long after accept_before an answer is still waited
	// for before silence counts as unreachable; default 500 ms.
	AcceptMargin time.Duration
	// AskAgain are the pauses after the first and the second unanswered
	// request; default 2 s and 3 s.
	AskAgain [2]time.Duration
	// NobodyAgain is the pause before the one more try that a host without
	// presence gets; default 1 s.
	NobodyAgain time.Duration
	// RefusedAgain is the pause after a refusal that may pass (expired,
	// another instance), growing with each; default 250 ms.
	RefusedAgain time.Duration
	// Grace is how long a host whose presence is fresh may have nobody
	// listening; default 45 s. ReconnectGrace is the same for every host,
	// counted from this worker's own reconnection; default 30 s. During both
	// the host is asked every GraceAgain; default 2 s.
	Grace, ReconnectGrace, GraceAgain time.Duration
	// StepAside is when a chunk whose hosts are slow gives up its place in
	// the lane; default 1 s.
	StepAside time.Duration
	// Pull is how long one request for chunks or results waits at the
	// server, and so the longest delay after the server was away; default 3 s.
	Pull time.Duration
	// AckWait is how long the consumers let a message be without a sign of
	// progress; it is given every third of that. Default 10 s.
	AckWait time.Duration
	// CollectLinger is how long a batch of results waits for more after its
	// first; default 10 ms.
	CollectLinger time.Duration
	// PresenceLinger is the same for announcements; default 20 ms.
	PresenceLinger time.Duration
	// RetryMin and RetryMax bound the jittered pause while the store or the
	// bus is away; default 50 ms and 3 s. StoreCall bounds one call; default 10 s.
	RetryMin, RetryMax, StoreCall time.Duration
	// ClockSync is the pause between looks at the store's clock; default 10 s.
	ClockSync time.Duration

	// SweepRound is the pause between rounds; default 1 s. LeaseTTL is the
	// life of a shard's lease and LeaseTerm for how long it is renewed before
	// another worker gets its chance; default 15 s and 1 min.
	SweepRound, LeaseTTL, LeaseTerm time.Duration
	// DispatchAfter is when a task that its dispatcher did not finish
	// publishing is published by the sweep; default 5 s.
	DispatchAfter time.Duration
	// RequeueAfter is the age at which a task's chunks are looked for in the
	// stream; default 5 s.
	RequeueAfter time.Duration
	// ChaseAfter is the age at which a task's delivered items are first looked
	// at for lost results; default 15 s.
	ChaseAfter time.Duration
	// ResendWait bounds one round of asking agents to send results again;
	// default 1 s. LastCall is how long an overdue task waits for what its
	// agents were asked to send; default 3 s.
	ResendWait, LastCall time.Duration
	// RevisitMin and RevisitMax bound the pause between visits to an open
	// task, which grows with its age; default 2 s and 30 s.
	RevisitMin, RevisitMax time.Duration
	// GhostAge is the age at which an entry of the sweep index without a task
	// is removed; younger ones may be about to be written. Default 2 min.
	GhostAge time.Duration

	// Callback bounds one callback; default 5 s. CallbackFor is how long
	// after its end a task's callback is tried; default 1 h, and never longer
	// than the store knows the task.
	Callback, CallbackFor time.Duration
	// Drain is how long Run finishes what it holds after its context ended;
	// default 10 s.
	Drain time.Duration
}

// WithDefaults returns c with every zero field set.
func (c Config) WithDefaults() Config {
	c.ID = cmp.Or(c.ID, uuid.NewString())
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
		Parked:      cmp.Or(l.Parked, 256),
		CollectMax:  cmp.Or(l.CollectMax, 500),
		SweepTasks:  cmp.Or(l.SweepTasks, 32),
		Notifiers:   cmp.Or(l.Notifiers, 16),
	}
}

func (t Timing) withDefaults() Timing {
	const ms, s = time.Millisecond, time.Second
	return Timing{
		AcceptWindow:   cmp.Or(t.AcceptWindow, 10*s),
		AcceptMargin:   cmp.Or(t.AcceptMargin, 500*ms),
		AskAgain:       [2]time.Duration{cmp.Or(t.AskAgain[0], 2*s), cmp.Or(t.AskAgain[1], 3*s)},
		NobodyAgain:    cmp.Or(t.NobodyAgain, s),
		RefusedAgain:   cmp.Or(t.RefusedAgain, 250*ms),
		Grace:          cmp.Or(t.Grace, 45*s),
		ReconnectGrace: cmp.Or(t.ReconnectGrace, 30*s),
		GraceAgain:     cmp.Or(t.GraceAgain, 2*s),
		StepAside:      cmp.Or(t.StepAside, s),
		Pull:           cmp.Or(t.Pull, 3*s),
		AckWait:        cmp.Or(t.AckWait, 10*s),
		CollectLinger:  cmp.Or(t.CollectLinger, 10*ms),
		PresenceLinger: cmp.Or(t.PresenceLinger, 20*ms),
		RetryMin:       cmp.Or(t.RetryMin, 50*ms),
		RetryMax:       cmp.Or(t.RetryMax, 3*s),
		StoreCall:      cmp.Or(t.StoreCall, 10*s),
		ClockSync:      cmp.Or(t.ClockSync, 10*s),
		SweepRound:     cmp.Or(t.SweepRound, s),
		LeaseTTL:       cmp.Or(t.LeaseTTL, 15*s),
		LeaseTerm:      cmp.Or(t.LeaseTerm, time.Minute),
		DispatchAfter:  cmp.Or(t.DispatchAfter, 5*s),
		RequeueAfter:   cmp.Or(t.RequeueAfter, 5*s),
		ChaseAfter:     cmp.Or(t.ChaseAfter, 15*s),
		ResendWait:     cmp.Or(t.ResendWait, s),
		LastCall:       cmp.Or(t.LastCall, 3*s),
		RevisitMin:     cmp.Or(t.RevisitMin, 2*s),
		RevisitMax:     cmp.Or(t.RevisitMax, 30*s),
		GhostAge:       cmp.Or(t.GhostAge, 2*time.Minute),
		Callback:       cmp.Or(t.Callback, 5*s),
		CallbackFor:    cmp.Or(t.CallbackFor, time.Hour),
		Drain:          cmp.Or(t.Drain, 10*s),
	}
}

// Validate reports everything that is wrong with c, which has its defaults.
func (c Config) Validate() error {
	var errs []error
	missing := func(field string, absent bool) {
		if absent {
			errs = append(errs, fmt.Errorf("worker: Config.%s is not set", field))
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
		{"Notifiers", c.Limits.Notifiers},
	} {
		if l.value < 1 {
			errs = append(errs, fmt.Errorf("worker: Config.Limits.%s is %d; it must be at least 1", l.field, l.value))
		}
	}
	if c.Timing.AcceptWindow > maxAcceptWindow {
		errs = append(errs, fmt.Errorf("worker: Config.Timing.AcceptWindow is %v; it must be at most %v", c.Timing.AcceptWindow, maxAcceptWindow))
	}
	return errors.Join(errs...)
}

// maxAcceptWindow keeps a thawed host from doing yesterday's work.
const maxAcceptWindow = 10 * time.Second

// Points at which [Config].Reached is called.
const (
	PointBegun        = "worker.begun"         // a chunk was begun, nothing asked
	PointAsked        = "worker.asked"         // its commands are on their way
	PointBeforeDone   = "worker.before-done"   // all hosts answered, nothing stored
	PointAfterDone    = "worker.after-done"    // stored as done, not acknowledged
	PointCollecting   = "worker.collecting"    // results pulled, not stored
	PointCollected    = "worker.collected"     // results stored, not acknowledged
	PointBeforeNotify = "worker.before-notify" // a task ended, its event not sent
)
