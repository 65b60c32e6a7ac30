// Package sweep visits open tasks periodically. It republishes lost chunks, requests
// resends of missing results, and ends overdue tasks.
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
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/collect"
	"github.com/procfleet/procfleet/worker/notify"
	"github.com/procfleet/procfleet/worker/storecall"
)

// Store has the calls to a task store that this package uses.
type Store interface {
	taskstore.SweepStore
	Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error
	Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error
	CancelItems(ctx context.Context, id procfleet.TaskID, items []taskstore.ChunkItems, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error)
	ItemCancels(ctx context.Context, id procfleet.TaskID, chunk int) (taskstore.CanceledItems, error)
	Tasks(ctx context.Context, q taskstore.TaskQuery) ([]procfleet.Task, error)
	Task(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error)
	Chunk(ctx context.Context, id procfleet.TaskID, chunk int) ([]procfleet.ItemResult, error)
	Results(ctx context.Context, id procfleet.TaskID, q taskstore.ResultQuery) (page []procfleet.ItemResult, next string, err error)
	Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error)
}

// Registrar stores and ends the registrations of accepted tasks, and reads reports.
type Registrar interface {
	Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error)
	Register(ctx context.Context, ds []catalog.Definition, replace bool) (existed [][]bool, err error)
	EndRegistrations(ctx context.Context, ps []catalog.Process, asked time.Time) (ended []bool, err error)
	Reported(ctx context.Context, hosts []procfleet.Host) ([]catalog.Report, error)
}

// Config holds the dependencies and settings of a [Sweeper].
type Config struct {
	*agentlink.Link
	ID        string // id of this worker as holder of leases
	Store     Store
	Registrar Registrar
	Audit     *audit.Log // nil records nothing
	Recorder  *collect.Recorder
	Notifier  *notify.Notifier
	Releaser  Releaser
	Timing    Timing
	Tasks     int // tasks visited in one round of a shard
	Items     int // items of tasks being repaired
	Outage    *storecall.Outage
	Log       logrus.FieldLogger
}

// Sweeper visits every open task periodically, repairs tasks after lost messages, and
// ends overdue tasks. Its actions can be repeated safely; leases save work.
//
// A round reads all its tasks together and writes all next visits together. Work that
// waits for the broker or for agents runs as a repair, concurrently to the rounds, so
// that a slow host delays no other task.
type Sweeper struct {
	cfg     Config
	repairs *repairSlots
	stepped storecall.SteppedClock

	// busAgain is when JetStream may be used again after an outage, in nanoseconds of
	// the store's clock. Until then tasks that need JetStream are skipped, as each
	// would delay the others by a timeout.
	busAgain atomic.Int64

	holds   toldHolds
	waiting waitingVisits
}

// New returns a sweeper that is inactive until [Sweeper.Run].
func New(cfg Config) *Sweeper {
	return &Sweeper{cfg: cfg, repairs: newRepairSlots(cfg.Items)}
}

// shard is this worker's state of one shard of the sweep index. Only the goroutine of
// [Sweeper.runShard] uses it, except for the fields guarded by mu.
type shard struct {
	*Sweeper
	number int
	leased time.Time // last renewal; zero without a lease
	until  time.Time // when to release the lease to another worker

	running sync.WaitGroup // running repairs
	mu      sync.Mutex
	open    map[procfleet.TaskID]*progress
}

// Run sweeps until ctx ends. It then releases its leases with the context work.
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
	// Random start: workers and shards that start together spread over the round.
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
			if more { // more visits are due
				next = 0
			}
		case storecall.Unavailable(err):
			next = storecall.Jitter(s.cfg.Calls.RetryMax)
			s.cfg.Outage.Failed(time.Now(), err)
		default:
			next = storecall.Jitter(s.cfg.Calls.RetryMax)
			if !failing { // log the first of consecutive failures
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

// round visits due tasks if this worker holds the lease; more reports if others are due.
func (sh *shard) round(ctx context.Context) (more bool, err error) {
	acquired, err := sh.lease(ctx)
	if err != nil || !acquired {
		return false, err
	}
	due, err := sh.cfg.Store.Due(ctx, sh.number, sh.cfg.Tasks)
	if err != nil {
		return false, fmt.Errorf("list due tasks: %w", err)
	}
	sh.cfg.Metrics.Sweeps.Round(sh.number, due, sh.cfg.Clock.Now())
	if err := sh.visit(ctx, due); err != nil {
		return false, err
	}
	return len(due) == sh.cfg.Tasks, nil
}

// lease reports whether this worker may sweep the shard now. It acquires or renews the
// lease as needed: after a third of its TTL. It releases the lease at the end of the
// term, so that shards are distributed over all workers, including new ones.
func (sh *shard) lease(ctx context.Context) (bool, error) {
	now := time.Now()
	switch {
	case !sh.leased.IsZero() && now.After(sh.until):
		return false, sh.release(ctx)
	case !sh.leased.IsZero() && now.Sub(sh.leased) < sh.cfg.Timing.LeaseTTL/3:
		return true, nil
	}
	acquired, err := sh.cfg.Store.Lease(ctx, sh.leaseName(), sh.cfg.ID, sh.cfg.Timing.LeaseTTL)
	if err != nil {
		sh.leased = time.Time{}
		return false, fmt.Errorf("lease shard %d: %w", sh.number, err)
	}
	if !acquired {
		sh.forget()
		return false, nil
	}
	if sh.leased.IsZero() {
		sh.until = now.Add(sh.cfg.Timing.LeaseTerm/2 + time.Duration(rand.Int64N(int64(sh.cfg.Timing.LeaseTerm))))
	}
	sh.leased = now
	return true, nil
}

// release releases the lease. After an error the lease expires.
func (sh *shard) release(ctx context.Context) error {
	sh.forget()
	if err := sh.cfg.Store.Release(ctx, sh.leaseName(), sh.cfg.ID); err != nil {
		return fmt.Errorf("release the lease of shard %d: %w", sh.number, err)
	}
	return nil
}

func (sh *shard) forget() {
	sh.leased = time.Time{}
	sh.cfg.Metrics.Sweeps.Forget(sh.number)
	sh.forgetProgress()
}

func (s *Sweeper) traceSweep(ctx context.Context, task *procfleet.Task, action string) (context.Context, trace.Span) {
	return tracecontext.Start(tracecontext.FromText(ctx, task.Trace), s.cfg.Tracer, "sweep "+action,
		trace.WithAttributes(tracecontext.KeyTask.String(string(task.ID))))
}

// Timing holds the durations of the sweep. A zero field means its default.
type Timing struct {
	// Round is the pause between rounds; default 1 s. LeaseTTL is the TTL of a shard's
	// lease; default 15 s. LeaseTerm is the average time until the lease is released to
	// another worker; default 1 min.
	Round, LeaseTTL, LeaseTerm time.Duration
	// DispatchAfter is the age at which the sweep publishes a task whose dispatcher has
	// not finished publishing; default 5 s.
	DispatchAfter time.Duration
	// RequeueAfter is the age at which the sweep checks whether a task's pending chunks
	// are still in the stream; default 5 s.
	RequeueAfter time.Duration
	// ResendAfter is the age at which the sweep first checks for lost results of a
	// task's delivered items; default 15 s.
	ResendAfter time.Duration
	// ResendWait is the timeout of replies to resend requests; default 1 s. LastCall is
	// how long an overdue task waits for resent results; default 3 s. When it is
	// overdue by LastCallMax, it ends without further requests; default 30 s.
	ResendWait, LastCall, LastCallMax time.Duration
	// RevisitMin and RevisitMax bound the pause between visits of an open task, which
	// grows with the task's age; default 2 s and 30 s.
	RevisitMin, RevisitMax time.Duration
	// AbsentAge is the age at which an index entry without a task is removed. A younger
	// entry's task may not be written yet. Default 2 min.
	AbsentAge time.Duration
}

// WithDefaults returns t with every zero field set to its default.
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
