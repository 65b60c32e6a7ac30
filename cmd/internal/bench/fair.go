package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
)

// Fair is the benchmark of fairness between concurrent tasks: big tasks that start
// together, one-host tasks during the big tasks, and tasks in one cloud area while
// another area is unavailable.
type Fair struct {
	Config
	Tasks   int // number of concurrent big tasks
	Hosts   int // number of hosts per big task
	Samples int // number of measured one-host tasks
	Area    int // number of hosts in each cloud area, and of each task in an area
}

// Validate reports all invalid settings.
func (f Fair) Validate() error {
	return errors.Join(f.Config.Validate(), atLeast("--tasks", f.Tasks, 2), checkSizes("--hosts", f.Hosts),
		atLeast("--samples", f.Samples, 1), checkSizes("--area", f.Area))
}

// Run runs the benchmark.
func (f Fair) Run(ctx context.Context) (Report, error) {
	return inLab(ctx, f.Config, func(l *lab) ([]*Table, error) {
		together, err := f.concurrent(ctx, l)
		if err != nil {
			return nil, fmt.Errorf("%d tasks at once: %w", f.Tasks, err)
		}
		areas, err := f.duringOutages(ctx, l)
		if err != nil {
			return nil, fmt.Errorf("during an unavailable area: %w", err)
		}
		return []*Table{f.shares(together), f.singles(together), f.areas(areas)}, nil
	})
}

// marks are the progress percentages of the fastest task at which tasks are compared.
var marks = [...]int{25, 50, 75}

// concurrentTasks holds the measurements of big tasks that start together.
type concurrentTasks struct {
	idle, busy []time.Duration    // durations of one-host tasks without and with big tasks
	least      [len(marks)][]int  // items of the slowest task when the fastest passed a mark, per run
	ends       [2][]time.Duration // durations of the first and the last task from the first POST
}

func (f Fair) concurrent(ctx context.Context, l *lab) (*concurrentTasks, error) {
	s, err := startSystem(ctx, l, fleet{agents: f.Hosts})
	if err != nil {
		return nil, err
	}
	defer s.stop()
	a := &concurrentTasks{}
	for range f.Samples {
		if a.idle, err = f.single(ctx, s, a.idle); err != nil {
			return nil, err
		}
	}
	for run := range f.Runs {
		if err := f.race(ctx, s, a); err != nil {
			return nil, err
		}
		l.Log.WithFields(logrus.Fields{"run": run + 1, "last_ms": a.ends[1][run].Milliseconds()}).Info("measured")
	}
	return a, nil
}

// single appends the duration of one one-host task to times.
func (f Fair) single(ctx context.Context, s *system, times []time.Duration) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begun := time.Now()
	id, err := s.wire.submit(oneHost(len(times)%s.agents), "")
	if err == nil {
		err = s.finishes.await(ctx, id, 1)
	}
	return append(times, time.Since(begun)), err
}

// race starts the big tasks together and measures one-host tasks until all big tasks are
// finished.
func (f Fair) race(ctx context.Context, s *system, a *concurrentTasks) error {
	begun := time.Now()
	ids, err := f.submitAll(ctx, s)
	if err != nil {
		return err
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	var failed error
	watching.Go(func() {
		defer close(over)
		failed = f.watch(ctx, s, ids, begun, a)
	})
	for running := true; running; {
		if a.busy, err = f.single(ctx, s, a.busy); err != nil {
			break
		}
		select {
		case <-over:
			running = false
		default:
		}
	}
	watching.Wait()
	return errors.Join(err, failed)
}

func (f Fair) submitAll(ctx context.Context, s *system) ([]procfleet.TaskID, error) {
	wires := make([]*wire, f.Tasks)
	for i := range wires {
		var err error
		if wires[i], err = dial(ctx, s.address); err != nil {
			return nil, err
		}
		defer wires[i].close()
	}
	ids, body := make([]procfleet.TaskID, f.Tasks), manyHosts(f.Hosts)
	err := together(ctx, f.Tasks, f.Tasks, func(_ context.Context, submitter, i int) (err error) {
		ids[i], err = wires[submitter].submit(body, "")
		return err
	})
	return ids, err
}

// watch records, for each mark, the progress of the slowest task when the fastest task
// reaches the mark. It returns when all tasks are finished.
func (f Fair) watch(ctx context.Context, s *system, ids []procfleet.TaskID, begun time.Time, a *concurrentTasks) error {
	const every = 5 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, time.Duration(f.Tasks)*patience) // the tasks share the machine
	defer cancel()
	next, first := 0, time.Duration(0)
	for {
		done := make([]int, len(ids))
		ended := 0
		for i, id := range ids {
			task, err := s.store.Task(ctx, id)
			if err != nil {
				return err
			}
			done[i] = task.Items - task.Counts[procfleet.StatePending] - task.Counts[procfleet.StateDelivered]
			if task.State.Done() {
				ended++
			}
		}
		for ; next < len(marks) && slices.Max(done)*100 >= marks[next]*f.Hosts; next++ {
			a.least[next] = append(a.least[next], slices.Min(done)*100/f.Hosts)
		}
		if first == 0 && ended > 0 {
			first = time.Since(begun)
		}
		if ended == len(ids) {
			a.ends[0], a.ends[1] = append(a.ends[0], first), append(a.ends[1], time.Since(begun))
			return nil
		}
		if err := wait(ctx, every); err != nil {
			return err
		}
	}
}

const (
	shareGoal    = 0.75 // minimum progress of the slowest task relative to the fastest at shareGoalAt
	shareGoalAt  = 50
	awayGoal     = 1.5 // maximum ratio to the duration without an unavailable area
	awayArea     = 1   // id of the unavailable cloud area
	flap         = time.Second
	awayFleet    = "agents-away"
	fewestBeside = 3
)

func (f Fair) shares(a *concurrentTasks) *Table {
	t := &Table{
		Title:   fmt.Sprintf("Fairness: %d status tasks on the same %s hosts at once", f.Tasks, thousands(f.Hosts)),
		Columns: []string{"when the first has, %", "the slowest has, %", "worst run, %", "ratio", "goal", "met"},
		Notes: []string{fmt.Sprintf("The first task was finished after %s ms, the last one after %s ms.",
			text(ms(quantile(slices.Clone(a.ends[0]), 0.5))), text(ms(quantile(slices.Clone(a.ends[1]), 0.5))))},
	}
	for i, mark := range marks {
		least := slices.Sorted(slices.Values(a.least[i]))
		median := least[len(least)/2]
		share := float64(median) / float64(mark)
		goal, met := "", ""
		if mark == shareGoalAt {
			goal, met = noLess(share, shareGoal, " of it")
		}
		t.add(mark, median, least[0], share, goal, met)
	}
	return t
}

func (f Fair) singles(a *concurrentTasks) *Table {
	t := &Table{
		Title:   "Fairness: one host at a time, POST to \"finished\" event, ms",
		Columns: []string{"beside", "samples", "median", "p99", "ratio", "goal", "met"},
	}
	idle, busy := quantile(a.idle, 0.5), quantile(a.busy, 0.5)
	t.add("nothing", len(a.idle), ms(idle), ms(quantile(a.idle, 0.99)), 1.0, "", "")
	goal, met := atMost(ratio(busy, idle), busyGoal, " × idle")
	t.add(fmt.Sprintf("%d tasks on %s hosts", f.Tasks, thousands(f.Hosts)), len(a.busy), ms(busy), ms(quantile(a.busy, 0.99)), ratio(busy, idle), goal, met)
	return t
}

// outageTimes holds durations of tasks while another area is unavailable.
type outageTimes struct {
	outage string // kind of unavailability
	times  []time.Duration
}

// duringOutages measures tasks without an unavailable area, and then during a task in an
// area with each kind of unavailability.
func (f Fair) duringOutages(ctx context.Context, l *lab) (all []outageTimes, err error) {
	s, err := startSystem(ctx, l, fleet{agents: f.Area})
	if err != nil {
		return nil, err
	}
	defer s.stop()
	for _, c := range []struct {
		outage   string
		simulate func(*child, <-chan struct{}) // nil: the area has no agents
		none     bool                          // no task runs in the unavailable area
	}{
		{outage: "nothing", none: true},
		{outage: "an area without agents"},
		{outage: "an area that is silent", simulate: silence},
		{outage: "an area that flaps", simulate: flapping},
		{outage: "nothing, again", none: true},
	} {
		out := outageTimes{outage: c.outage}
		var area *child
		if c.simulate != nil {
			if area, err = f.startArea(ctx, s); err != nil {
				return nil, err
			}
		}
		if out.times, err = f.duringOutage(ctx, s, area, c.simulate, !c.none); err != nil {
			return nil, fmt.Errorf("%s: %w", c.outage, err)
		}
		if area != nil {
			area.stop()
		}
		all = append(all, out)
	}
	return all, nil
}

func (f Fair) startArea(ctx context.Context, s *system) (*child, error) {
	plant := s.lab.plant
	args := []string{"simulate", "--agents", strconv.Itoa(f.Area), "--cloud", strconv.Itoa(awayArea)}
	_, err := plant.start(ctx, awayFleet, plant.self, append(args, s.lab.natsFlags()...), "ready ")
	return plant.child(awayFleet), err
}

// silence suspends the agent process of an area, whose connections remain open, until
// over is closed. flapping suspends and resumes the process repeatedly. Both functions
// resume the process at the end.
func silence(c *child, over <-chan struct{}) {
	c.suspend()
	<-over
	c.resume()
}

func flapping(c *child, over <-chan struct{}) {
	for {
		for _, change := range []func(){c.suspend, c.resume} {
			change()
			select {
			case <-over:
				c.resume()
				return
			case <-time.After(flap):
			}
		}
	}
}

// duringOutage measures tasks in area 0 while simulate runs for the process of the other
// area. With submit a task runs in the other area too. At the end duringOutage stops
// simulate and waits for that task.
func (f Fair) duringOutage(ctx context.Context, s *system, area *child, simulate func(*child, <-chan struct{}), submit bool) (times []time.Duration, err error) {
	over := make(chan struct{})
	var outage sync.WaitGroup
	if area != nil {
		outage.Go(func() { simulate(area, over) })
	}
	endOutage := sync.OnceFunc(func() {
		close(over)
		outage.Wait()
	})
	defer endOutage()
	var id procfleet.TaskID
	if submit {
		if id, err = s.wire.submit(submission(procfleet.ActionStatus, sample, hosts(awayArea, f.Area)), ""); err != nil {
			return nil, err
		}
	}
	quick := manyHosts(f.Area)
	for range max(f.Runs, fewestBeside) {
		operated, err := s.operate(ctx, quick)
		if err != nil {
			return nil, err
		}
		times = append(times, operated.path)
	}
	endOutage()
	if submit {
		_, err = s.finished(ctx, id)
	}
	return times, err
}

func (f Fair) areas(all []outageTimes) *Table {
	t := &Table{
		Title:   fmt.Sprintf("Fairness: a task on %s hosts beside one on as many of another area, ms", thousands(f.Area)),
		Columns: []string{"beside", "samples", "median", "worst", "ratio", "goal", "met"},
		Notes: []string{fmt.Sprintf("Without agents: no responders. Silent: all agents are suspended with open connections. Flapping: they are "+
			"suspended and resumed every %v. The task of the other area begins first.", flap)},
	}
	alone := slices.Concat(all[0].times, all[len(all)-1].times)
	base := quantile(alone, 0.5)
	for _, out := range all {
		median := quantile(out.times, 0.5)
		goal, met := "", ""
		if out.outage != all[0].outage && out.outage != all[len(all)-1].outage {
			goal, met = atMost(ratio(median, base), awayGoal, " × alone")
		}
		t.add(out.outage, len(out.times), ms(median), ms(slices.Max(out.times)), ratio(median, base), goal, met)
	}
	return t
}
