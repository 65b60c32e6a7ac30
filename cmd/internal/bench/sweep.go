package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// Sweep is the benchmark of sweep visits: the rate at which workers visit many tasks that
// are due at once. The floor is pipelined reads of the same tasks from Redis.
type Sweep struct {
	Config
	Tasks   int   // number of one-host tasks
	Workers []int // measured numbers of workers
}

// Validate reports all invalid settings.
func (m Sweep) Validate() error {
	return errors.Join(m.Config.Validate(), atLeast("--tasks", m.Tasks, 1), Workers{Config: m.Config, Hosts: 1, Workers: m.Workers, Latencies: []time.Duration{0}}.Validate())
}

// sweepKind is one kind of visited tasks.
type sweepKind struct {
	name string
	// make changes a new task to a task of this kind.
	make  func(ctx context.Context, s *stores.Redis, id procfleet.TaskID) error
	delay time.Duration // time between the creation of the last task and the visits
}

var sweepKinds = []sweepKind{
	{name: "finished and notified", make: func(ctx context.Context, s *stores.Redis, id procfleet.TaskID) error {
		_, err := s.Reject(ctx, id, "bench") // a rejected task is finished after one call
		return err
	}},
	// Sixteen seconds after delivery, a visit also checks for lost results.
	{name: "running", delay: 16 * time.Second, make: func(ctx context.Context, s *stores.Redis, id procfleet.TaskID) error {
		if err := s.Dispatched(ctx, id, []uint64{1}); err != nil {
			return err
		}
		return s.Delivered(ctx, id, 0, []int{0}, true)
	}},
}

// swept holds the measurements of one number of workers with tasks of one kind.
type swept struct {
	kind    string
	workers int
	visits  time.Duration
	floor   time.Duration
	cpu     map[string]time.Duration
}

// Run runs the benchmark.
func (m Sweep) Run(ctx context.Context) (Report, error) {
	return inLab(ctx, m.Config, func(l *lab) ([]*Table, error) {
		store, err := l.openStore(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { _ = store.Close() }() // the data of the benchmark is not needed afterwards
		var all []swept
		for _, kind := range sweepKinds {
			for _, workers := range m.Workers {
				out, err := m.measure(ctx, l, store, kind, workers)
				if err != nil {
					return nil, fmt.Errorf("%d workers, %s tasks: %w", workers, kind.name, err)
				}
				all = append(all, out)
				l.Log.WithFields(logrus.Fields{"kind": kind.name, "workers": workers, "took_ms": out.visits.Milliseconds()}).Info("measured")
			}
		}
		return []*Table{m.table(all)}, nil
	})
}

func (m Sweep) measure(ctx context.Context, l *lab, store *stores.Redis, kind sweepKind, workers int) (out swept, err error) {
	ids, err := m.create(ctx, store, kind)
	if err != nil {
		return out, err
	}
	out = swept{kind: kind.name, workers: workers}
	if out.floor, err = m.floor(ctx, l, ids); err != nil {
		return out, err
	}
	if err := m.postpone(ctx, store, ids, taskstore.MaxVisit); err != nil { // no task is due before all exist
		return out, err
	}
	for range workers {
		if err := l.startWorker(ctx); err != nil {
			return out, err
		}
		defer l.plant.child(worker).stop()
	}
	if err := until(ctx, "the shards are leased", readyPause, func() bool { return m.leases(ctx, l) == taskstore.SweepShards }); err != nil {
		return out, err
	}
	if err := wait(ctx, kind.delay); err != nil {
		return out, err
	}
	before, begun := l.plant.cpu(), time.Now()
	if err := m.postpone(ctx, store, ids, 0); err != nil {
		return out, err
	}
	due := begun.Add(time.Second)
	err = until(ctx, "every task is visited", 5*time.Millisecond, func() bool { return m.waiting(ctx, l, due) == 0 })
	out.visits, out.cpu = time.Since(begun), spent(before, l.plant.cpu())
	return out, errors.Join(err, m.settle(ctx, store, ids))
}

const sweepBatch = 500

func (m Sweep) create(ctx context.Context, store *stores.Redis, kind sweepKind) ([]procfleet.TaskID, error) {
	ids := make([]procfleet.TaskID, m.Tasks)
	var group errgroup.Group
	group.SetLimit(64)
	for i := range ids {
		group.Go(func() error {
			host, err := procfleet.NewHost(0, simulate.Address(i).String())
			if err != nil {
				return err
			}
			if ids[i], err = createTask(ctx, store, procfleet.ActionStart, host); err != nil {
				return err
			}
			return kind.make(ctx, store, ids[i])
		})
	}
	return ids, group.Wait()
}

// createTask stores a task with one action on one host.
func createTask(ctx context.Context, store *stores.Redis, action procfleet.Action, host procfleet.Host) (procfleet.TaskID, error) {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName = "bench", sample, sample
	task, _, err := store.Create(ctx, taskstore.Draft{
		Lane: procfleet.LaneSmall, Timeout: time.Hour, Retention: time.Hour, Actions: []procfleet.Action{action}, Dialect: "native",
		Chunks: []procfleet.Chunk{{
			Specs: []procfleet.ProcessSpec{spec},
			Items: []procfleet.Item{{Action: action, Target: procfleet.Target{Host: host}}},
		}},
	})
	return task.ID, err
}

// floor returns the time that bare Redis needs for the reads of one visit of every task. It
// sends them in pipelines, without code of procfleet.
func (m Sweep) floor(ctx context.Context, l *lab, ids []procfleet.TaskID) (time.Duration, error) {
	begun := time.Now()
	for some := range slices.Chunk(ids, sweepBatch) {
		pipe := l.redis.Pipeline()
		for _, id := range some {
			pipe.HGetAll(ctx, "pf:{"+string(id)+"}:head")
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return 0, err
		}
	}
	return time.Since(begun), nil
}

func (m Sweep) postpone(ctx context.Context, store *stores.Redis, ids []procfleet.TaskID, after time.Duration) error {
	next := make([]taskstore.NextVisit, len(ids))
	for i, id := range ids {
		next[i] = taskstore.NextVisit{Task: id, After: after}
	}
	return store.Revisit(ctx, next...)
}

func (m Sweep) settle(ctx context.Context, store *stores.Redis, ids []procfleet.TaskID) error {
	for some := range slices.Chunk(ids, sweepBatch) {
		visits := make([]taskstore.Visit, len(some))
		for i, id := range some {
			visits[i].Task = id
		}
		if err := store.Settle(ctx, visits...); err != nil {
			return err
		}
	}
	return nil
}

// leases returns the number of shards whose lease a worker holds.
func (m Sweep) leases(ctx context.Context, l *lab) (n int) {
	for shard := range taskstore.SweepShards {
		n += int(l.redis.Exists(ctx, "pf:lease:sweep/"+strconv.Itoa(shard)).Val())
	}
	return n
}

// waiting returns the number of tasks that were not visited yet: their due time in the
// index is earlier than before.
func (m Sweep) waiting(ctx context.Context, l *lab, before time.Time) (n int64) {
	pipe := l.redis.Pipeline()
	var counts []*redis.IntCmd
	for shard := range taskstore.SweepShards {
		counts = append(counts, pipe.ZCount(ctx, "pf:{index}:sweep:"+strconv.Itoa(shard), "-inf", strconv.FormatInt(before.UnixMicro(), 10)))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 1
	}
	for _, c := range counts {
		n += c.Val()
	}
	return n
}

func (m Sweep) table(all []swept) *Table {
	t := &Table{
		Title:   fmt.Sprintf("Sweep: %s tasks that are due at once", thousands(m.Tasks)),
		Columns: []string{"tasks", "workers", "visits, ms", "visits/s", "floor, ms", "floor reads/s", "ratio", "worker CPU, µs each", "Redis CPU, µs each"},
		Notes: []string{"A visit removes a finished task from the index. Of a running task it reads the delivered items and their agents, and sets the time " +
			"of the next visit. The floor is a bare pipelined read of the same tasks, by one connection. Processor time is summed over the workers."},
	}
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(m.Tasks) }
	for _, out := range all {
		t.add(out.kind, out.workers, ms(out.visits), perSecond(m.Tasks, out.visits), ms(out.floor), perSecond(m.Tasks, out.floor),
			ratio(out.visits, out.floor), each(out.cpu[worker]), each(out.cpu[redisServer]))
	}
	return t
}
