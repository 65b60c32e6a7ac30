package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	errs := []error{w.Config.Validate(), checkSizes("--hosts", w.Hosts)}
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
	return inLab(ctx, w.Config, func(l *lab) ([]*Table, error) {
		var all []worked
		for _, latency := range w.Latencies {
			for _, workers := range w.Workers {
				out, err := w.measure(ctx, l, workers, latency)
				if err != nil {
					return nil, fmt.Errorf("%d workers, agents that take %v: %w", workers, latency, err)
				}
				all = append(all, out)
				l.Log.WithFields(logrus.Fields{"workers": workers, "latency": latency, "path_ms": out.path.Milliseconds()}).Info("measured")
			}
		}
		return []*Table{w.table(all)}, nil
	})
}

func (w Workers) measure(ctx context.Context, l *lab, workers int, latency time.Duration) (out worked, err error) {
	s, err := startSystem(ctx, l, fleet{agents: w.Hosts, more: []string{"--latency", latency.String()}})
	if err != nil {
		return out, err
	}
	defer s.stop()
	for range workers - 1 {
		if err := l.startWorker(ctx); err != nil {
			return out, err
		}
	}
	submission := manyHosts(w.Hosts)
	if _, err := s.operate(ctx, submission); err != nil { // warm-up: all workers open their connections
		return out, err
	}
	times := make([]time.Duration, w.Runs)
	before := l.plant.cpu()
	for i := range times {
		operated, err := s.operate(ctx, submission)
		if err != nil {
			return out, err
		}
		times[i] = operated.path
	}
	cpu := spent(before, l.plant.cpu())
	return worked{latency: latency, workers: workers, path: quantile(times, 0.5), cpu: cpu, peak: l.plant.peak(worker)}, nil
}

func (w Workers) table(all []worked) *Table {
	t := &Table{
		Title:   fmt.Sprintf("Workers: one status task on %s hosts, POST to finished in Redis, ms", thousands(w.Hosts)),
		Columns: []string{"agents take", "workers", "path", "to the first"},
		Notes: []string{"CPU is user and system time in ms per task (mean), summed over the workers. MiB is the maximum resident memory of one " +
			"worker. The column \"to the first\" is the ratio to the first number of workers with the same latency."},
	}
	t.Columns = append(t.Columns, processColumns(" CPU", "all CPU", "MiB")...)
	first := map[time.Duration]time.Duration{}
	for _, out := range all {
		if _, ok := first[out.latency]; !ok {
			first[out.latency] = out.path
		}
		row, total := processCells(func(name string) float64 { return ms(out.cpu[name]) / float64(w.Runs) })
		row = append([]any{out.latency.String(), out.workers, ms(out.path), ratio(out.path, first[out.latency])}, row...)
		t.add(append(row, total, mib(out.peak))...)
	}
	return t
}
