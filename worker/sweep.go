package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
)

// sweeper visits every open task now and then, heals what was lost on the
// way, and ends what is overdue. Whatever it does may be done twice: a lease
// saves work, correctness does not rest on it.
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
	outage   *outage
	log      logrus.FieldLogger
}

// shard is one part of the sweep index as one worker sees it. The goroutine
// of [sweeper.runShard] owns it.
type shard struct {
	*sweeper
	number  int
	leased  time.Time                      // last renewed; zero without lease
	until   time.Time                      // when the lease is given up so that another may have it
	overdue map[procfleet.TaskID]time.Time // when all agents had got their last call; zero until then
	cursors map[procfleet.TaskID]string    // where asking for lost results goes on
	// busAgain is when JetStream is asked again after it was away: the tasks
	// that need it must not make the others wait, each for a timeout.
	busAgain time.Time
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
	sh := &shard{
		sweeper: s, number: number,
		overdue: map[procfleet.TaskID]time.Time{}, cursors: map[procfleet.TaskID]string{},
	}
	// Workers and shards that start together spread over the round.
	next := time.Duration(rand.Int64N(int64(s.timing.Sweep.Round)))
	failing := false
	for pause(ctx, next) == nil {
		next = jitter(s.timing.Sweep.Round)
		began := time.Now()
		err := sh.round(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			s.outage.back(began, time.Now())
		case storeAway(err):
			next = jitter(s.timing.RetryMax)
			s.outage.away(time.Now(), err)
		default:
			next = jitter(s.timing.RetryMax)
			if !failing { // once in a row
				s.log.WithError(err).WithField("shard", number).Warn("sweep round cut short, will keep trying")
			}
		}
		failing = err != nil
	}
	if sh.leased.IsZero() {
		return
	}
	if err := sh.release(work); err != nil {
		s.log.WithError(err).Warn("the lease will end by itself")
	}
}

func (sh *shard) leaseName() string { return "sweep/" + strconv.Itoa(sh.number) }

// round visits the due tasks of the shard, if this worker has its lease.
func (sh *shard) round(ctx context.Context) error {
	held, err := sh.lease(ctx)
	if err != nil || !held {
		return err
	}
	due, err := sh.store.Due(ctx, sh.number, sh.limit)
	if err != nil {
		return fmt.Errorf("list due tasks: %w", err)
	}
	sh.metrics.sweeps.round(sh.number, len(due))
	for _, id := range due {
		if err := sh.visitSafely(ctx, id); err != nil {
			if err := sh.postpone(ctx, id, err); err != nil {
				return err
			}
		}
		if held, err := sh.lease(ctx); err != nil || !held {
			return err
		}
	}
	return nil
}

// postpone puts off a task whose visit failed, since one task's trouble must
// not keep the others waiting. It returns an error if none can be visited.
func (sh *shard) postpone(ctx context.Context, id procfleet.TaskID, cause error) error {
	log, after := sh.log.WithError(cause).WithField("task", id), sh.timing.Sweep.RevisitMax
	switch {
	case ctx.Err() != nil:
		return cause
	case errors.Is(cause, bus.ErrAway): // may wrap what a store that is away answers too
		after = sh.timing.Sweep.RevisitMin
		sh.busAgain = sh.clock.now().Add(after)
		log.Warn("task not healed while JetStream is away, will come again")
	case storeAway(cause):
		return cause
	default:
		log.Error("visit failed, will come again")
	}
	return sh.revisit(ctx, id, after)
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
	clear(sh.overdue)
	clear(sh.cursors)
}

// visitSafely turns a panic over one task into an error.
func (sh *shard) visitSafely(ctx context.Context, id procfleet.TaskID) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return sh.visit(ctx, id)
}

// visit does what a task needs now and sets its next visit.
func (sh *shard) visit(ctx context.Context, id procfleet.TaskID) error {
	task, err := sh.store.Task(ctx, id)
	switch {
	case errors.Is(err, taskstore.ErrNotFound):
		return sh.ghost(ctx, id)
	case err != nil:
		return fmt.Errorf("read task: %w", err)
	case task.State.Done():
		return sh.done(ctx, &task)
	}
	now := sh.clock.now()
	if now.After(task.Deadline) {
		sh.metrics.sweeps.overdue(sh.number, now.Sub(task.Deadline))
		return sh.giveUp(ctx, &task, now)
	}
	if err := sh.heal(ctx, &task, now); err != nil {
		return err
	}
	// Bounded by the deadline, so that an overdue task ends at once.
	age := now.Sub(task.CreatedAt)
	next := min(max(age/4, sh.timing.Sweep.RevisitMin), sh.timing.Sweep.RevisitMax, task.Deadline.Sub(now)+time.Millisecond)
	return sh.revisit(ctx, id, next)
}

func (sh *shard) revisit(ctx context.Context, id procfleet.TaskID, after time.Duration) error {
	if err := sh.store.Revisit(ctx, id, jitter(after)); err != nil {
		return fmt.Errorf("set the next visit: %w", err)
	}
	return nil
}

func (sh *shard) settle(ctx context.Context, id procfleet.TaskID) error {
	delete(sh.overdue, id)
	delete(sh.cursors, id)
	if err := sh.store.Settle(ctx, id); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return nil
}

// ghost handles an index entry without a task: it expired, or its dispatcher
// died before writing it, or is just about to. A number far in the future is
// of a time when the store's clock was ahead.
func (sh *shard) ghost(ctx context.Context, id procfleet.TaskID) error {
	number, err := id.Number()
	if err == nil && sh.clock.now().Sub(number.Time()).Abs() < sh.timing.Sweep.GhostAge {
		return sh.revisit(ctx, id, sh.timing.Sweep.RevisitMin)
	}
	sh.metrics.sweep(ctx, sweepForget, 1)
	return sh.settle(ctx, id)
}

// done has the end of a task told that is still to be told. It does not wait
// for that: callbacks are slow.
func (sh *shard) done(ctx context.Context, task *procfleet.Task) error {
	if task.State == procfleet.TaskFinished && task.NotifyPending {
		sh.metrics.sweep(ctx, sweepNotify, 1)
		// First the visit: telling takes the task out of the index.
		if err := sh.revisit(ctx, task.ID, sh.notifier.callbackPause(task)); err != nil {
			return err
		}
		sh.notifier.soon(task.ID)
		return nil
	}
	return sh.settle(ctx, task.ID)
}
