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
	return errors.Join(f.Config.Validate(), atLeast("--tasks", f.Tasks, 2), checkSizes("--hosts", []int{f.Hosts}),
		atLeast("--samples", f.Samples, 1), checkSizes("--area", []int{f.Area}))
}

// Run runs the benchmark.
func (f Fair) Run(ctx context.Context) (Report, error) {
	var report Report
	err := inLab(ctx, f.Config, func(l *lab) error {
		together, err := f.abreast(ctx, l)
		if err != nil {
			return fmt.Errorf("%d tasks at once: %w", f.Tasks, err)
		}
		beside, err := f.besideAreas(ctx, l)
		if err != nil {
			return fmt.Errorf("beside an unavailable area: %w", err)
		}
		report = l.report(ctx, f.shares(together), f.singles(together), f.areas(beside))
		return nil
	})
	return report, err
}

// marks are the progress percentages of the fastest task at which tasks are compared.
var marks = [...]int{25, 50, 75}

// abreast holds the measurements of big tasks that start together.
type abreast struct {
	idle, beside []time.Duration    // durations of one-host tasks without and with big tasks
	least        [len(marks)][]int  // items of the slowest task when the fastest passed a mark, per run
	ends         [2][]time.Duration // durations of the first and the last task from the first POST
}

func (f Fair) abreast(ctx context.Context, l *lab) (*abreast, error) {
	s, err := startSystem(ctx, l, fleet{agents: f.Hosts})
	if err != nil {
		return nil, err
	}
	defer s.stop()
	a := &abreast{}
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
func (f Fair) race(ctx context.Context, s *system, a *abreast) error {
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
		if a.beside, err = f.single(ctx, s, a.beside); err != nil {
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
func (f Fair) watch(ctx context.Context, s *system, ids []procfleet.TaskID, begun time.Time, a *abreast) error {
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

func (f Fair) shares(a *abreast) *Table {
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

func (f Fair) singles(a *abreast) *Table {
	t := &Table{
		Title:   "Fairness: one host at a time, POST to \"finished\" event, ms",
		Columns: []string{"beside", "samples", "median", "p99", "ratio", "goal", "met"},
	}
	idle, beside := quantile(a.idle, 0.5), quantile(a.beside, 0.5)
	t.add("nothing", len(a.idle), ms(idle), ms(quantile(a.idle, 0.99)), 1.0, "", "")
	goal, met := atMost(ratio(beside, idle), besideGoal, " × idle")
	t.add(fmt.Sprintf("%d tasks on %s hosts", f.Tasks, thousands(f.Hosts)), len(a.beside), ms(beside), ms(quantile(a.beside, 0.99)), ratio(beside, idle), goal, met)
	return t
}

// besideAway holds durations of tasks while another area is unavailable.
type besideAway struct {
	how   string
	times []time.Duration
}

// besideAreas measures tasks without an unavailable area, and then during a task in an
// area with each kind of unavailability.
func (f Fair) besideAreas(ctx context.Context, l *lab) (all []besideAway, err error) {
	s, err := startSystem(ctx, l, fleet{agents: f.Area})
	if err != nil {
		return nil, err
	}
	defer s.stop()
	for _, c := range []struct {
		how   string
		fleet func(*child, <-chan struct{}) // simulates the unavailability; nil: the area has no agents
		none  bool                          // no task runs in the unavailable area
	}{
		{how: "nothing", none: true},
		{how: "an area without agents"},
		{how: "an area that is silent", fleet: silence},
		{how: "an area that flaps", fleet: flapping},
		{how: "nothing, again", none: true},
	} {
		out := besideAway{how: c.how}
		var area *child
		if c.fleet != nil {
			if area, err = f.startArea(ctx, s); err != nil {
				return nil, err
			}
		}
		if out.times, err = f.besideArea(ctx, s, area, c.fleet, !c.none); err != nil {
			return nil, fmt.Errorf("%s: %w", c.how, err)
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
	if err != nil {
		return nil, err
	}
	s.roles = append(s.roles, plant.child(awayFleet))
	return plant.child(awayFleet), nil
}

// silence suspends the agent process of an area, whose connections remain open, until
// over is closed. flapping suspends and resumes the process repeatedly. Both functions
// resume the process at the end.
func silence(c *child, over <-chan struct{}) {
	c.pause()
	<-over
	c.goOn()
}

func flapping(c *child, over <-chan struct{}) {
	for {
		for _, turn := range []func(){c.pause, c.goOn} {
			turn()
			select {
			case <-over:
				c.goOn()
				return
			case <-time.After(flap):
			}
		}
	}
}

// besideArea measures tasks in area 0 while does runs for the process of the other area.
// With submit a task runs in the other area too. At the end besideArea stops does and
// waits for that task.
func (f Fair) besideArea(ctx context.Context, s *system, area *child, does func(*child, <-chan struct{}), submit bool) (times []time.Duration, err error) {
	over := make(chan struct{})
	var busy sync.WaitGroup
	if area != nil {
		busy.Go(func() { does(area, over) })
	}
	goOn := sync.OnceFunc(func() {
		close(over)
		busy.Wait()
	})
	defer goOn()
	var id procfleet.TaskID
	if submit {
		hosts := make([]string, f.Area)
		for i := range hosts {
			hosts[i] = hostIn(awayArea, i)
		}
		if id, err = s.wire.submit(submission(procfleet.ActionStatus, sample, hosts), ""); err != nil {
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
	goOn()
	if submit {
		_, err = s.finished(ctx, id)
	}
	return times, err
}

func (f Fair) areas(all []besideAway) *Table {
	t := &Table{
		Title:   fmt.Sprintf("Fairness: a task on %s hosts beside one on as many of another area, ms", thousands(f.Area)),
		Columns: []string{"beside", "samples", "median", "worst", "ratio", "goal", "met"},
		Notes: []string{fmt.Sprintf("Without agents: no responders. Silent: all agents are stopped with open connections. Flapping: they are "+
			"stopped and go on every %v. The task of the other area begins first.", flap)},
	}
	alone := slices.Concat(all[0].times, all[len(all)-1].times)
	base := quantile(alone, 0.5)
	for _, out := range all {
		median := quantile(out.times, 0.5)
		goal, met := "", ""
		if out.how != all[0].how && out.how != all[len(all)-1].how {
			goal, met = atMost(ratio(median, base), awayGoal, " × alone")
		}
		t.add(out.how, len(out.times), ms(median), ms(slices.Max(out.times)), ratio(median, base), goal, met)
	}
	return t
}
