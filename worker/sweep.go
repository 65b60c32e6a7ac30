package worker

import (
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
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

// sweeper visits every open task now and then, reconciles what was lost in
// transit, and ends what is overdue. Whatever it does may be done twice: a
// lease saves work, correctness does not rest on it.
//
// A visit that finds nothing wrong is one read and one write, shared by all
// tasks of a round. What waits for the broker or for agents runs beside the
// rounds, as a repair, so that one slow host delays no other task.
type sweeper struct {
	id       string
	store    Store
	bus      *bus.Bus
	audit    *audit.Log
	asker    *asker
	believer *believer
	clock    *clock
	recorder *recorder
	notifier *notifier
	metrics  *metrics
	tracer   trace.Tracer
	timing   *Timing
	limit    int // visits per shard and round
	repairs  *repairSlots
	stepped  *steppedClock
	outage   *outage
	log      logrus.FieldLogger

	// busAgain, in nanoseconds of the store's clock, is when JetStream is used
	// again after it was unavailable: the tasks that need it must not make the
	// others wait, each for a timeout.
	busAgain atomic.Int64
}

// shard is one part of the sweep index as one worker sees it. The goroutine
// of [sweeper.runShard] owns it, except for what mu guards.
type shard struct {
	*sweeper
	number int
	leased time.Time // last renewed; zero without lease
	until  time.Time // when the lease is given up so that another worker may have it

	running sync.WaitGroup // repairs
	mu      sync.Mutex
	open    map[procfleet.TaskID]*progress
}

// run sweeps until ctx ends. work outlives it, to give leases back.
func (s *sweeper) run(ctx, work context.Context) {
	var shards sync.WaitGroup
	for n := range taskstore.SweepShards {
		shards.Go(func() { s.runShard(ctx, work, n) })
	}
	shards.Wait()
}

func (s *sweeper) runShard(ctx, work context.Context, number int) {
	sh := &shard{sweeper: s, number: number, open: map[procfleet.TaskID]*progress{}}
	defer sh.running.Wait()
	// Workers and shards that start together spread over the round.
	next := time.Duration(rand.Int64N(int64(s.timing.Sweep.Round)))
	failing := false
	for pause(ctx, next) == nil {
		next = jitter(s.timing.Sweep.Round)
		began := time.Now()
		more, err := sh.round(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			s.outage.back(began, time.Now())
			if more { // an overload is worked off without a pause
				next = 0
			}
		case storeAway(err):
			next = jitter(s.timing.RetryMax)
			s.outage.away(time.Now(), err)
		default:
			next = jitter(s.timing.RetryMax)
			if !failing { // once in a row
				s.log.WithError(err).WithField("shard", number).Warn("sweep round failed, retrying")
			}
		}
		failing = err != nil
	}
	if sh.leased.IsZero() {
		return
	}
	if err := sh.release(work); err != nil {
		s.log.WithError(err).Warn("lease not released, left to expire")
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
	due, err := sh.store.Due(ctx, sh.number, sh.limit)
	if err != nil {
		return false, fmt.Errorf("list due tasks: %w", err)
	}
	sh.metrics.sweeps.round(sh.number, due, sh.clock.now())
	if err := sh.visit(ctx, due); err != nil {
		return false, err
	}
	return len(due) == sh.limit, nil
}

// lease reports whether this worker may sweep the shard now. A lease is
// renewed at a third of its life, and given up after a term, so that workers
// which came later get their share.
func (sh *shard) lease(ctx context.Context) (bool, error) {
	now := time.Now()
	switch {
	case !sh.leased.IsZero() && now.After(sh.until):
		return false, sh.release(ctx)
	case !sh.leased.IsZero() && now.Sub(sh.leased) < sh.timing.Sweep.LeaseTTL/3:
		return true, nil
	}
	held, err := sh.store.Lease(ctx, sh.leaseName(), sh.id, sh.timing.Sweep.LeaseTTL)
	if err != nil {
		sh.leased = time.Time{}
		return false, fmt.Errorf("lease shard %d: %w", sh.number, err)
	}
	if !held {
		sh.forget()
		return false, nil
	}
	if sh.leased.IsZero() {
		sh.until = now.Add(sh.timing.Sweep.LeaseTerm/2 + time.Duration(rand.Int64N(int64(sh.timing.Sweep.LeaseTerm))))
	}
	sh.leased = now
	return true, nil
}

// release gives the lease back; if that fails it will end by itself.
func (sh *shard) release(ctx context.Context) error {
	sh.forget()
	if err := sh.store.Release(ctx, sh.leaseName(), sh.id); err != nil {
		return fmt.Errorf("give back the lease of shard %d: %w", sh.number, err)
	}
	return nil
}

func (sh *shard) forget() {
	sh.leased = time.Time{}
	sh.metrics.sweeps.forget(sh.number)
	sh.forgetProgress()
}
