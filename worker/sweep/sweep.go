// Package sweep visits open tasks periodically: it reconciles what was lost in
// transit, requests results again, and ends overdue tasks.
package sweep

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/collect"
	"github.com/procfleet/procfleet/worker/notify"
	"github.com/procfleet/procfleet/worker/storecall"
)

// Store is what this package needs of a task store.
type Store interface {
	taskstore.SweepStore
	Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error
	Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error
	Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
	Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error)
	Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) (page []procfleet.ItemResult, next string, err error)
	Register(ctx context.Context, ds []catalog.Definition, replace bool) (existed [][]bool, err error)
	Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error)
}

// Config is what a sweeper is made of.
type Config struct {
	ID        string // of this worker, as holder of leases
	Store     Store
	Bus       *bus.Bus
	Audit     *audit.Log // nil keeps nothing
	Link      *agentlink.Link
	Requester *agentlink.Requester
	Recorder  *collect.Recorder
	Notifier  *notify.Notifier
	Tracer    trace.Tracer
	Timing    Timing
	Tasks     int // visits in one round of a shard
	Items     int // items of tasks under repair at a time
	Outage    *storecall.Outage
	Log       logrus.FieldLogger
}

// Sweeper visits every open task periodically, reconciles what was lost in transit,
// and ends overdue tasks. Everything it does may be done twice: a lease saves work,
// correctness does not rest on it.
//
// A visit that finds nothing wrong is one read and one write, shared by all tasks
// of a round. Work that waits for the broker or for agents runs beside the rounds,
// as a repair, so that one slow host delays no other task.
type Sweeper struct {
	cfg     Config
	resends resender
	repairs *repairSlots
	stepped storecall.SteppedClock

	// busAgain, in nanoseconds of the store's clock, is when JetStream is used
	// again after it was unavailable: the tasks that need it must not make the
	// others wait, each for a timeout.
	busAgain atomic.Int64
}

// New returns a sweeper that does nothing until [Sweeper.Run].
func New(cfg Config) *Sweeper {
	return &Sweeper{cfg: cfg, resends: resender{&cfg}, repairs: newRepairSlots(cfg.Items)}
}

// shard is one worker's state of one part of the sweep index. The goroutine of
// [Sweeper.runShard] owns it, except for the fields that mu guards.
type shard struct {
	*Sweeper
	number int
	leased time.Time // last renewed; zero without lease
	until  time.Time // when the lease is released so that another worker may have it

	running sync.WaitGroup // repairs
	mu      sync.Mutex
	open    map[procfleet.TaskID]*progress
}

// Run sweeps until ctx ends. work outlives it, to release leases.
func (s *Sweeper) Run(ctx, work context.Context) {
	var shards sync.WaitGroup
	for n := range taskstore.SweepShards {
		shards.Go(func() { s.runShard(ctx, work, n) })
	}
	shards.Wait()
}

func (s *Sweeper) runShard(ctx, work context.Context, number int) {
	sh := &shard{Sweeper: s, number: number, open: map[procfleet.TaskID]*progress{}}
	defer sh.running.Wait()
	// Workers and shards that start together spread over the round.
	next := time.Duration(rand.Int64N(int64(s.cfg.Timing.Round)))
	failing := false
	for storecall.Pause(ctx, next) == nil {
		next = storecall.Jitter(s.cfg.Timing.Round)
		began := time.Now()
		more, err := sh.round(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			s.cfg.Outage.Succeeded(began, time.Now())
			if more { // no pause while more visits are due
				next = 0
			}
		case storecall.Unavailable(err):
			next = storecall.Jitter(s.cfg.Link.Calls.RetryMax)
			s.cfg.Outage.Failed(time.Now(), err)
		default:
			next = storecall.Jitter(s.cfg.Link.Calls.RetryMax)
			if !failing { // once in a row
				s.cfg.Log.WithError(err).WithField("shard", number).Warn("sweep round failed, retrying")
			}
		}
		failing = err != nil
	}
	if sh.leased.IsZero() {
		return
	}
	if err := sh.release(work); err != nil {
		s.cfg.Log.WithError(err).Warn("lease not released, left to expire")
	}
}

func (sh *shard) leaseName() string { return "sweep/" + strconv.Itoa(sh.number) }

// round visits due tasks of the shard, if this worker has its lease, and
// reports whether there may be more of them.
func (sh *shard) round(ctx context.Context) (more bool, err error) {
	held, err := sh.lease(ctx)
	if err != nil || !held {
		return false, err
	}
	due, err := sh.cfg.Store.Due(ctx, sh.number, sh.cfg.Tasks)
	if err != nil {
		return false, fmt.Errorf("list due tasks: %w", err)
	}
	sh.cfg.Link.Metrics.Sweeps.Round(sh.number, due, sh.cfg.Link.Clock.Now())
	if err := sh.visit(ctx, due); err != nil {
		return false, err
	}
	return len(due) == sh.cfg.Tasks, nil
}

// lease reports whether this worker may sweep the shard now. A lease is
// renewed at a third of its life, and released after a term, so that workers which
// started later get their share.
func (sh *shard) lease(ctx context.Context) (bool, error) {
	now := time.Now()
	switch {
	case !sh.leased.IsZero() && now.After(sh.until):
		return false, sh.release(ctx)
	case !sh.leased.IsZero() && now.Sub(sh.leased) < sh.cfg.Timing.LeaseTTL/3:
		return true, nil
	}
	held, err := sh.cfg.Store.Lease(ctx, sh.leaseName(), sh.cfg.ID, sh.cfg.Timing.LeaseTTL)
	if err != nil {
		sh.leased = time.Time{}
		return false, fmt.Errorf("lease shard %d: %w", sh.number, err)
	}
	if !held {
		sh.forget()
		return false, nil
	}
	if sh.leased.IsZero() {
		sh.until = now.Add(sh.cfg.Timing.LeaseTerm/2 + time.Duration(rand.Int64N(int64(sh.cfg.Timing.LeaseTerm))))
	}
	sh.leased = now
	return true, nil
}

// release releases the lease; if that fails, the lease expires.
func (sh *shard) release(ctx context.Context) error {
	sh.forget()
	if err := sh.cfg.Store.Release(ctx, sh.leaseName(), sh.cfg.ID); err != nil {
		return fmt.Errorf("release the lease of shard %d: %w", sh.number, err)
	}
	return nil
}

func (sh *shard) forget() {
	sh.leased = time.Time{}
	sh.cfg.Link.Metrics.Sweeps.Forget(sh.number)
	sh.forgetProgress()
}

// traceSweep begins the span of an action for a task, in the task's trace.
func (s *Sweeper) traceSweep(ctx context.Context, task *procfleet.Task, action string) (context.Context, trace.Span) {
	return tracecontext.Start(tracecontext.FromText(ctx, task.Trace), s.cfg.Tracer, "sweep "+action,
		trace.WithAttributes(tracecontext.KeyTask.String(string(task.ID))))
}

// Timing is how often and when the sweep acts. A zero field is the default.
type Timing struct {
	// Round is the pause between rounds; default 1 s. LeaseTTL is the life of
	// a shard's lease and LeaseTerm about how long it is renewed before
	// another worker gets its chance; default 15 s and 1 min.
	Round, LeaseTTL, LeaseTerm time.Duration
	// DispatchAfter is when a task that its dispatcher did not finish
	// publishing is published by the sweep; default 5 s.
	DispatchAfter time.Duration
	// RequeueAfter is the age at which a task's chunks are searched in the stream;
	// default 5 s.
	RequeueAfter time.Duration
	// ResendAfter is the age at which a task's delivered items are first checked for
	// lost results; default 15 s.
	ResendAfter time.Duration
	// ResendWait bounds one round of resend requests; default 1 s. LastCall is how
	// long an overdue task waits for results that were requested again; default 3 s.
	// LastCallMax is how long after its deadline a task ends even if not all agents
	// got a resend request; default 30 s.
	ResendWait, LastCall, LastCallMax time.Duration
	// RevisitMin and RevisitMax bound the pause between visits to an open
	// task, which grows with its age; default 2 s and 30 s.
	RevisitMin, RevisitMax time.Duration
	// AbsentAge is the age at which an entry of the sweep index without a task
	// is removed; the task of a younger one may be about to be written. Default 2 min.
	AbsentAge time.Duration
}

// WithDefaults returns t with every zero field set.
func (t Timing) WithDefaults() Timing {
	const s = time.Second
	return Timing{
		Round:         cmp.Or(t.Round, s),
		LeaseTTL:      cmp.Or(t.LeaseTTL, 15*s),
		LeaseTerm:     cmp.Or(t.LeaseTerm, time.Minute),
		DispatchAfter: cmp.Or(t.DispatchAfter, 5*s),
		RequeueAfter:  cmp.Or(t.RequeueAfter, 5*s),
		ResendAfter:   cmp.Or(t.ResendAfter, 15*s),
		ResendWait:    cmp.Or(t.ResendWait, s),
		LastCall:      cmp.Or(t.LastCall, 3*s),
		LastCallMax:   cmp.Or(t.LastCallMax, 30*s),
		RevisitMin:    cmp.Or(t.RevisitMin, 2*s),
		RevisitMax:    cmp.Or(t.RevisitMax, 30*s),
		AbsentAge:     cmp.Or(t.AbsentAge, 2*time.Minute),
	}
}
