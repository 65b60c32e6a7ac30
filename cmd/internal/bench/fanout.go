package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
)

// Fanout measures one task on many hosts.
type Fanout struct {
	Config
	Hosts       []int // numbers of hosts
	Connections int   // of the agents to NATS; 0 is the default of simulate
}

// Validate reports everything that is wrong.
func (f Fanout) Validate() error {
	return errors.Join(f.Config.Validate(), atLeast("--connections", f.Connections, 0), checkSizes("--hosts", f.Hosts))
}

// fanned is one measured run.
type fanned struct {
	floor floor
	operated
	cpu map[string]time.Duration
}

// fannedOut is what one number of hosts came to.
type fannedOut struct {
	hosts   int
	samples []fanned
	peak    map[string]int // bytes resident
}

// Run measures.
func (f Fanout) Run(ctx context.Context) (Report, error) {
	var report Report
	err := inLab(ctx, f.Config, func(l *lab) error {
		var all []fannedOut
		for _, hosts := range f.Hosts {
			out, err := f.measure(ctx, l, hosts)
			if err != nil {
				return fmt.Errorf("%d hosts: %w", hosts, err)
			}
			all = append(all, out)
		}
		report = Report{Machine: l.machine(ctx), Tables: []*Table{fanTimes(all), fanCost(all)}}
		return nil
	})
	return report, err
}

// measure alternates between the floor and the path, so that both see the
// same machine.
func (f Fanout) measure(ctx context.Context, l *lab, hosts int) (out fannedOut, err error) {
	bare, err := newBare(ctx, l, hosts)
	if err != nil {
		return out, err
	}
	defer bare.close()
	system, err := startSystem(ctx, l, fleet{agents: hosts, connections: f.Connections})
	if err != nil {
		return out, err
	}
	defer system.stop()
	out = fannedOut{hosts: hosts, samples: make([]fanned, f.Runs), peak: map[string]int{}}
	submission := manyHosts(hosts)
	for i := range out.samples {
		s := &out.samples[i]
		if s.floor, err = bare.measure(ctx); err != nil {
			return out, fmt.Errorf("floor: %w", err)
		}
		before := system.cpu()
		if s.operated, err = system.operate(ctx, submission); err != nil {
			return out, fmt.Errorf("path: %w", err)
		}
		s.cpu = spent(before, system.cpu())
		l.Log.WithFields(logrus.Fields{"hosts": hosts, "run": i + 1, "floor_ms": s.floor.sum().Milliseconds(), "path_ms": s.path.Milliseconds()}).Info("measured")
	}
	for _, name := range processNames() {
		out.peak[name] = system.peak(name)
	}
	return out, nil
}

const (
	fanGoal     = 2.0  // times the floor
	growthGoal  = 11.0 // times the figure of ten times fewer hosts
	memoryGoal  = 300  // MiB of dispatcher and worker with 100,000 hosts
	memoryHosts = 100_000
)

func fanTimes(all []fannedOut) *Table {
	t := &Table{
		Title:   "Fan-out: one status task on N hosts, POST to finished in Redis, ms",
		Columns: []string{"hosts", "request/reply", "publish", "pull + ack", "script", "floor", "accept", "path", "ratio", "goal", "met"},
	}
	paths := map[int]time.Duration{}
	for _, out := range all {
		of := func(column func(*fanned) time.Duration) time.Duration { return medianOf(out.samples, column) }
		floor := floor{
			request: of(func(s *fanned) time.Duration { return s.floor.request }),
			publish: of(func(s *fanned) time.Duration { return s.floor.publish }),
			pull:    of(func(s *fanned) time.Duration { return s.floor.pull }),
			script:  of(func(s *fanned) time.Duration { return s.floor.script }),
		}
		path := of(func(s *fanned) time.Duration { return s.path })
		paths[out.hosts] = path
		goal, met := atMost(ratio(path, floor.sum()), fanGoal, " × floor")
		t.add(out.hosts, ms(floor.request), ms(floor.publish), ms(floor.pull), ms(floor.script), ms(floor.sum()),
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
		Columns: []string{"hosts"},
		Notes:   []string{"Processor time, user and system, in ms per task (mean); the most memory resident, in MiB, with everything that process had done by then."},
	}
	for _, name := range processNames() {
		t.Columns = append(t.Columns, name+" CPU")
	}
	t.Columns = append(t.Columns, "all CPU", "dispatcher MiB", "worker MiB", "sum MiB", "agents MiB", "goal", "met")
	for _, out := range all {
		row, total := []any{out.hosts}, 0.0
		for _, name := range processNames() {
			var sum time.Duration
			for _, s := range out.samples {
				sum += s.cpu[name]
			}
			mean := ms(sum) / float64(len(out.samples))
			row, total = append(row, mean), total+mean
		}
		mib := func(name string) float64 { return float64(out.peak[name]) / (1 << 20) }
		sum := mib(dispatcher) + mib(worker)
		goal, met := "", ""
		if out.hosts >= memoryHosts {
			goal, met = atMost(sum, memoryGoal, " MiB")
		}
		t.add(append(row, total, mib(dispatcher), mib(worker), sum, mib(agents), goal, met)...)
	}
	return t
}

// spent is what was used between two looks at the processes.
func spent(before, after map[string]time.Duration) map[string]time.Duration {
	used := map[string]time.Duration{}
	for name := range after {
		used[name] = after[name] - before[name]
	}
	return used
}
