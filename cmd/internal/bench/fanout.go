package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
)

// Fanout is the benchmark of one task on many hosts.
type Fanout struct {
	Config
	Hosts       []int // measured task sizes in hosts
	Connections int   // number of NATS connections of the agents; 0 selects the default of simulate
	// Action is "status" or "stop". Agents return results of status in their replies, and
	// send results of stop in separate requests.
	Action procfleet.Action
}

// Validate reports all invalid settings.
func (f Fanout) Validate() error {
	return errors.Join(f.Config.Validate(), atLeast("--connections", f.Connections, 0), checkSizes("--hosts", f.Hosts...), f.checkAction())
}

func (f Fanout) checkAction() error {
	if f.Action == procfleet.ActionStatus || f.Action == procfleet.ActionStop {
		return nil
	}
	return fmt.Errorf("--action: %q is not status or stop", f.Action)
}

// fanned is one measured run.
type fanned struct {
	floor    floor
	floorCPU time.Duration // processor time of NATS, Redis and this process during the floor
	operated
	cpu map[string]time.Duration
}

// fannedOut holds the measurements of one task size.
type fannedOut struct {
	hosts   int
	samples []fanned
	peak    map[string]int // maximum resident memory in bytes, by process name
}

// Run runs the benchmark.
func (f Fanout) Run(ctx context.Context) (Report, error) {
	return inLab(ctx, f.Config, func(l *lab) ([]*Table, error) {
		var all []fannedOut
		for _, hosts := range f.Hosts {
			out, err := f.measure(ctx, l, hosts)
			if err != nil {
				return nil, fmt.Errorf("%d hosts: %w", hosts, err)
			}
			all = append(all, out)
		}
		return []*Table{f.times(all), fanCost(all)}, nil
	})
}

// measure measures the floor and the system alternately, so that both run under the same
// conditions.
func (f Fanout) measure(ctx context.Context, l *lab, n int) (out fannedOut, err error) {
	bare, err := newBare(ctx, l, n)
	if err != nil {
		return out, err
	}
	defer bare.close()
	system, err := startSystem(ctx, l, fleet{agents: n, connections: f.Connections})
	if err != nil {
		return out, err
	}
	defer system.stop()
	out = fannedOut{hosts: n, samples: make([]fanned, f.Runs), peak: map[string]int{}}
	body := submission(f.Action, sample, hosts(0, n))
	for i := range out.samples {
		s := &out.samples[i]
		floorBefore := system.floorCPU()
		if s.floor, err = bare.measure(ctx, f.Action); err != nil {
			return out, fmt.Errorf("floor: %w", err)
		}
		s.floorCPU = system.floorCPU() - floorBefore
		before := l.plant.cpu()
		if s.operated, err = system.operate(ctx, body); err != nil {
			return out, fmt.Errorf("path: %w", err)
		}
		s.cpu = spent(before, l.plant.cpu())
		l.Log.WithFields(logrus.Fields{"hosts": n, "run": i + 1, "floor_ms": s.floor.sum().Milliseconds(), "path_ms": s.path.Milliseconds()}).Info("measured")
	}
	for _, name := range processNames() {
		out.peak[name] = l.plant.peak(name)
	}
	idle, err := count(ctx, system, idleFor)
	out.deduct(idle)
	return out, err
}

// idleFor is the duration of the idle measurement at the end, when no task runs and the
// agents only announce themselves.
const idleFor = 2 * time.Second

// deduct subtracts the idle processor time, given per second, from the measured times.
func (out *fannedOut) deduct(idle map[string]time.Duration) {
	left := func(used, inSecond, in time.Duration) time.Duration {
		return max(0, used-time.Duration(float64(inSecond)*in.Seconds()))
	}
	for i := range out.samples {
		s := &out.samples[i]
		s.floorCPU = left(s.floorCPU, idle[natsServer]+idle[redisServer], s.floor.sum())
		for name := range s.cpu {
			s.cpu[name] = left(s.cpu[name], idle[name], s.path)
		}
	}
}

const (
	goalHosts   = 10_000 // task size of the duration goal
	fanGoal     = 2.0    // maximum ratio to the floor for stop without security features
	growthGoal  = 10.0   // maximum ratio to the duration with a tenth of the hosts
	memoryGoal  = 300    // maximum MiB of dispatcher and worker with memoryHosts
	memoryHosts = 100_000
)

// floorGoal returns the table cells of the goal for times, the ratio to the floor. The
// cells are empty if this measurement has no goal.
func (f Fanout) floorGoal(hosts int, times float64) (goal, met string) {
	if hosts != goalHosts || f.Connections > 0 || f.Action == procfleet.ActionStatus || f.Secure != (Secure{}) {
		return "", ""
	}
	return atMost(times, fanGoal, " × floor")
}

func (f Fanout) times(all []fannedOut) *Table {
	t := &Table{
		Title: fmt.Sprintf("Fan-out: one %s task on N hosts, POST to finished in Redis, ms", f.Action),
		Columns: []string{
			"hosts", "request/reply", "results", "script", "floor", "accept", "path", "ratio", "goal", "met",
		},
		Notes: []string{"The floor is N request/replies on N subjects, N more for results that are separate requests, and N " +
			"results through one deduplicating script."},
	}
	paths := map[int]time.Duration{}
	for _, out := range all {
		of := func(column func(*fanned) time.Duration) time.Duration { return medianOf(out.samples, column) }
		floor := floor{
			request: of(func(s *fanned) time.Duration { return s.floor.request }),
			results: of(func(s *fanned) time.Duration { return s.floor.results }),
			script:  of(func(s *fanned) time.Duration { return s.floor.script }),
		}
		results := any("in replies")
		if f.Action != procfleet.ActionStatus {
			results = ms(floor.results)
		}
		path := of(func(s *fanned) time.Duration { return s.path })
		paths[out.hosts] = path
		goal, met := f.floorGoal(out.hosts, ratio(path, floor.sum()))
		t.add(out.hosts, ms(floor.request), results, ms(floor.script), ms(floor.sum()),
			ms(of(func(s *fanned) time.Duration { return s.accept })), ms(path), ratio(path, floor.sum()), goal, met)
	}
	for _, out := range all {
		if tenth, ok := paths[out.hosts/10]; ok && out.hosts >= memoryHosts {
			growth := ratio(paths[out.hosts], tenth)
			goal, met := atMost(growth, growthGoal, " ×")
			t.Notes = append(t.Notes, fmt.Sprintf("%s hosts took %s times as long as %s; goal %s: %s.",
				thousands(out.hosts), text(growth), thousands(out.hosts/10), goal, met))
		}
	}
	return t
}

func fanCost(all []fannedOut) *Table {
	t := &Table{
		Title:   "Fan-out: what a task costs",
		Columns: append([]string{"hosts"}, processColumns(" CPU", "all CPU", "floor CPU", "dispatcher MiB", "worker MiB", "sum MiB", "agents MiB", "goal", "met")...),
		Notes: []string{"CPU is user and system time in ms per task (mean), minus the time for agents' announcements. Floor CPU is that of NATS, " +
			"Redis and the client of the floor. MiB is the maximum resident memory since the start of the process."},
	}
	for _, out := range all {
		row, total := processCells(func(name string) float64 {
			return ms(meanOf(out.samples, func(s *fanned) time.Duration { return s.cpu[name] }))
		})
		floor := ms(meanOf(out.samples, func(s *fanned) time.Duration { return s.floorCPU }))
		sum := mib(out.peak[dispatcher] + out.peak[worker])
		goal, met := "", ""
		if out.hosts >= memoryHosts {
			goal, met = atMost(sum, memoryGoal, " MiB")
		}
		row = append([]any{out.hosts}, row...)
		t.add(append(row, total, floor, mib(out.peak[dispatcher]), mib(out.peak[worker]), sum, mib(out.peak[agents]), goal, met)...)
	}
	return t
}

// spent returns the processor time of each process between two measurements.
func spent(before, after map[string]time.Duration) map[string]time.Duration {
	used := map[string]time.Duration{}
	for name := range after {
		used[name] = after[name] - before[name]
	}
	return used
}
