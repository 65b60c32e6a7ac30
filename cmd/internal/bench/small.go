package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
)

// Small is the benchmark of one-host tasks: the rate of concurrent tasks, and the latency
// of a single task without other load and during a big task.
type Small struct {
	Config
	Tasks    int // number of tasks per run
	InFlight int // number of concurrent tasks, each on its own HTTP connection
	Agents   int // number of simulated agents
	Samples  int // number of single tasks measured for latency
	Beside   int // number of hosts of the big task; 0 disables the big task
}

// Validate reports all invalid settings.
func (s Small) Validate() error {
	return errors.Join(
		s.Config.Validate(), atLeast("--tasks", s.Tasks, 1), atLeast("--in-flight", s.InFlight, 1), atLeast("--samples", s.Samples, 1),
		checkSizes("--agents", s.Agents), atLeast("--beside", s.Beside, 0), checkSizes("--beside", max(s.Beside, 1)))
}

// smallRun is one measured run of many tasks.
type smallRun struct {
	floor smallFloor
	took  time.Duration // first POST to last finished event
	cpu   map[string]time.Duration
}

// latencies holds the durations of single tasks from POST to the finished event.
type latencies struct {
	idle, busy []time.Duration // without other load, and during a big task
	floor      smallFloor      // floor of the same number of sequential tasks
}

// Run runs the benchmark.
func (s Small) Run(ctx context.Context) (Report, error) {
	return inLab(ctx, s.Config, func(l *lab) ([]*Table, error) {
		runs, times, err := s.alone(ctx, l)
		if err != nil {
			return nil, err
		}
		if times.busy, err = s.duringBig(ctx, l); err != nil {
			return nil, fmt.Errorf("during a task on %d hosts: %w", s.Beside, err)
		}
		return []*Table{s.rates(runs), s.costs(runs), s.times(&times)}, nil
	})
}

// alone measures rate and latency with few agents. The agents of the big task start later,
// because their announcements would load a small machine.
func (s Small) alone(ctx context.Context, l *lab) (runs []smallRun, times latencies, err error) {
	system, err := startSystem(ctx, l, fleet{agents: s.Agents})
	if err != nil {
		return nil, times, err
	}
	defer system.stop()
	bare, err := newBare(ctx, l, s.Agents)
	if err != nil {
		return nil, times, err
	}
	defer bare.close()
	if runs, err = s.throughput(ctx, system, bare.small); err != nil {
		return nil, times, err
	}
	times, err = s.latency(ctx, system, bare)
	return runs, times, err
}

// throughput measures the rate of concurrent tasks, alternately of floor and system.
func (s Small) throughput(ctx context.Context, system *system, floor func(ctx context.Context, n, inFlight int) (smallFloor, error)) ([]smallRun, error) {
	if _, err := s.many(ctx, system, max(s.Tasks/warmUpShare, 1)); err != nil {
		return nil, fmt.Errorf("warm-up: %w", err)
	}
	runs := make([]smallRun, s.Runs)
	for i := range runs {
		run := &runs[i]
		var err error
		if run.floor, err = floor(ctx, s.Tasks, s.InFlight); err != nil {
			return nil, fmt.Errorf("floor: %w", err)
		}
		before := system.lab.plant.cpu()
		if run.took, err = s.many(ctx, system, s.Tasks); err != nil {
			return nil, err
		}
		run.cpu = spent(before, system.lab.plant.cpu())
		s.Log.WithFields(logrus.Fields{"run": i + 1, "floor": int(perSecond(s.Tasks, run.floor.sum())), "tasks": int(perSecond(s.Tasks, run.took))}).Info("measured per second")
	}
	return runs, nil
}

// warmUpShare is the divisor of the number of tasks that yields the number of unmeasured
// tasks, which run first to open connections and grow heaps.
const warmUpShare = 10

// many runs n tasks with s.InFlight concurrent submitters and returns the duration. Each
// submitter waits for the end of its task before it submits the next task.
func (s Small) many(ctx context.Context, system *system, n int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	wires := make([]*wire, min(s.InFlight, n))
	for i := range wires {
		var err error
		if wires[i], err = dial(ctx, system.address); err != nil {
			return 0, err
		}
		defer wires[i].close()
	}
	begun := time.Now()
	err := together(ctx, n, len(wires), func(ctx context.Context, submitter, i int) error {
		return s.one(ctx, system, wires[submitter], i)
	})
	return time.Since(begun), err
}

// one submits task i and waits for its end.
func (s Small) one(ctx context.Context, system *system, w *wire, i int) error {
	id, err := w.submit(oneHost(i%s.Agents), "")
	if err != nil {
		return err
	}
	return system.finishes.await(ctx, id, 1)
}

func (s Small) latency(ctx context.Context, system *system, bare *bare) (l latencies, err error) {
	if l.floor, err = bare.small(ctx, s.Samples, 1); err != nil {
		return l, fmt.Errorf("floor: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i := range s.Samples {
		begun := time.Now()
		if err := s.one(ctx, system, system.wire, i); err != nil {
			return l, err
		}
		l.idle = append(l.idle, time.Since(begun))
	}
	return l, nil
}

// duringBig measures one-host tasks that start while a big task runs. Tasks that end after
// the big task are included, because they are the slowest.
func (s Small) duringBig(ctx context.Context, l *lab) (times []time.Duration, err error) {
	if s.Beside == 0 {
		return nil, nil
	}
	system, err := startSystem(ctx, l, fleet{agents: max(s.Agents, s.Beside)})
	if err != nil {
		return nil, err
	}
	defer system.stop()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	submission := manyHosts(s.Beside)
	for len(times) < s.Samples {
		id, err := system.wire.submit(submission, "")
		if err != nil {
			return nil, fmt.Errorf("big task: %w", err)
		}
		over := system.finishes.of(id)
		for running := true; running; {
			begun := time.Now()
			if err := s.one(ctx, system, system.wire, len(times)); err != nil {
				return nil, err
			}
			times = append(times, time.Since(begun))
			select {
			case <-over:
				running = false
			default:
			}
		}
	}
	return times, nil
}

const (
	rateGoal  = 0.4 // minimum ratio to the rate of the floor, concurrent tasks
	aloneGoal = 2.5 // maximum ratio to the floor, sequential tasks
	busyGoal  = 5.0 // maximum ratio to the latency without a big task
)

func (s Small) rates(runs []smallRun) *Table {
	t := &Table{
		Title: fmt.Sprintf("Small tasks: %s status tasks on one host each, %s in flight, per second", thousands(s.Tasks), thousands(s.InFlight)),
		Columns: []string{
			"Redis", "publish", "pull + ack", "request/reply", "script", "floor", "tasks", "of floor", "goal", "met",
		},
		Notes: []string{"Rates are from the first POST to the last \"finished\" event, which is published after the task is finished in Redis. " +
			"The floor is the sum of its parts, with the same concurrency: for each task one value written to Redis, one JetStream publish with a message id, " +
			"that message pulled and acknowledged, one request/reply with the result, and one call of a deduplicating script."},
	}
	rate := func(column func(*smallRun) time.Duration) float64 { return perSecond(s.Tasks, medianOf(runs, column)) }
	floor := rate(func(r *smallRun) time.Duration { return r.floor.sum() })
	tasks := rate(func(r *smallRun) time.Duration { return r.took })
	goal, met := noLess(tasks/floor, rateGoal, " of it")
	t.add(
		rate(func(r *smallRun) time.Duration { return r.floor.store }), rate(func(r *smallRun) time.Duration { return r.floor.queue }),
		rate(func(r *smallRun) time.Duration { return r.floor.pull }), rate(func(r *smallRun) time.Duration { return r.floor.request }),
		rate(func(r *smallRun) time.Duration { return r.floor.script }), floor,
		tasks, tasks/floor, goal, met)
	return t
}

func (s Small) costs(runs []smallRun) *Table {
	t := &Table{Title: "Small tasks: processor time of one, user and system, µs (mean)", Columns: processColumns("", "all")}
	row, total := processCells(func(name string) float64 {
		return float64(meanOf(runs, func(r *smallRun) time.Duration { return r.cpu[name] }).Microseconds()) / float64(s.Tasks)
	})
	t.add(append(row, total)...)
	return t
}

func (s Small) times(l *latencies) *Table {
	floor := l.floor.sum() / time.Duration(s.Samples)
	t := &Table{
		Title:   "Small tasks: one at a time, POST to \"finished\" event, ms",
		Columns: []string{"beside", "samples", "median", "p99", "to idle", "goal", "met", "to floor", "goal", "met"},
		Notes:   []string{fmt.Sprintf("The floor, the same calls one after the other, is %s ms.", text(ms(floor)))},
	}
	idle := quantile(l.idle, 0.5)
	goal, met := atMost(ratio(idle, floor), aloneGoal, " × floor")
	t.add("nothing", len(l.idle), ms(idle), ms(quantile(l.idle, 0.99)), 1.0, "", "", ratio(idle, floor), goal, met)
	if len(l.busy) > 0 {
		busy := quantile(l.busy, 0.5)
		goal, met := atMost(ratio(busy, idle), busyGoal, " × idle")
		t.add(fmt.Sprintf("a task on %s hosts", thousands(s.Beside)), len(l.busy), ms(busy), ms(quantile(l.busy, 0.99)),
			ratio(busy, idle), goal, met, ratio(busy, floor), "", "")
	}
	return t
}
