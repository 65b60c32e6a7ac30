package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"
)

// Workers is the benchmark of several workers, with agents of different latencies.
type Workers struct {
	Config
	Hosts     int
	Workers   []int           // measured numbers of workers
	Latencies []time.Duration // measured latencies of agents, from the acceptance of a command to its result
}

const mostWorkers = 16

// Validate reports all invalid settings.
func (w Workers) Validate() error {
	errs := []error{w.Config.Validate(), checkSizes("--hosts", []int{w.Hosts})}
	if len(w.Workers) == 0 || slices.Min(w.Workers) < 1 || slices.Max(w.Workers) > mostWorkers {
		errs = append(errs, fmt.Errorf("--workers: %v are not numbers from 1 to %d", w.Workers, mostWorkers))
	}
	if len(w.Latencies) == 0 || slices.Min(w.Latencies) < 0 {
		errs = append(errs, fmt.Errorf("--latency: %v are not lengths of time", w.Latencies))
	}
	return errors.Join(errs...)
}

// worked holds the measurements of one number of workers with one latency of agents.
type worked struct {
	latency time.Duration
	workers int
	path    time.Duration
	cpu     map[string]time.Duration // total processor time of all runs, by process name; summed over workers
	peak    int                      // maximum resident bytes of any worker
}

// Run runs the benchmark.
func (w Workers) Run(ctx context.Context) (Report, error) {
	var report Report
	err := inLab(ctx, w.Config, func(l *lab) error {
		var all []worked
		for _, latency := range w.Latencies {
			for _, workers := range w.Workers {
				out, err := w.measure(ctx, l, workers, latency)
				if err != nil {
					return fmt.Errorf("%d workers, agents that take %v: %w", workers, latency, err)
				}
				all = append(all, out)
				l.Log.WithFields(logrus.Fields{"workers": workers, "latency": latency, "path_ms": out.path.Milliseconds()}).Info("measured")
			}
		}
		report = l.report(ctx, w.table(all))
		return nil
	})
	return report, err
}

func (w Workers) measure(ctx context.Context, l *lab, workers int, latency time.Duration) (out worked, err error) {
	s, err := startSystem(ctx, l, fleet{agents: w.Hosts, more: []string{"--latency", latency.String()}})
	if err != nil {
		return out, err
	}
	defer s.stop()
	names := []string{worker}
	for n := 2; n <= workers; n++ {
		name := worker + "-" + strconv.Itoa(n)
		if err := l.plant.startRole(ctx, name, append([]string{"worker"}, s.servers()...), ""); err != nil {
			return out, err
		}
		s.roles, names = append(s.roles, l.plant.child(name)), append(names, name)
	}
	submission := manyHosts(w.Hosts)
	if _, err := s.operate(ctx, submission); err != nil { // warm-up: all workers open their connections
		return out, err
	}
	times := make([]time.Duration, w.Runs)
	of := func() map[string]time.Duration {
		used := s.cpu()
		for _, name := range names[1:] {
			used[worker] += cpuTime(l.plant.child(name).pid())
		}
		return used
	}
	before := of()
	for i := range times {
		operated, err := s.operate(ctx, submission)
		if err != nil {
			return out, err
		}
		times[i] = operated.path
	}
	out = worked{latency: latency, workers: workers, path: quantile(times, 0.5), cpu: spent(before, of())}
	for _, name := range names {
		out.peak = max(out.peak, peakRSS(l.plant.child(name).pid()))
	}
	return out, nil
}

func (w Workers) table(all []worked) *Table {
	t := &Table{
		Title:   fmt.Sprintf("Workers: one status task on %s hosts, POST to finished in Redis, ms", thousands(w.Hosts)),
		Columns: []string{"agents take", "workers", "path", "to the first"},
		Notes: []string{"Processor time, user and system, in ms per task (mean), that of all workers together; the most memory that one of the " +
			"workers had resident, in MiB. The first number of workers is what the others of the same latency are compared with."},
	}
	for _, name := range processNames() {
		t.Columns = append(t.Columns, name+" CPU")
	}
	t.Columns = append(t.Columns, "all CPU", "MiB")
	first := map[time.Duration]time.Duration{}
	for _, out := range all {
		if _, ok := first[out.latency]; !ok {
			first[out.latency] = out.path
		}
		row, total := []any{out.latency.String(), out.workers, ms(out.path), ratio(out.path, first[out.latency])}, 0.0
		for _, name := range processNames() {
			mean := ms(out.cpu[name]) / float64(w.Runs)
			row, total = append(row, mean), total+mean
		}
		t.add(append(row, total, float64(out.peak)/(1<<20))...)
	}
	return t
}
