package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Rollout is the benchmark of gradual tasks.
type Rollout struct {
	Config
	Hosts   int
	Windows []int         // measured windows in hosts
	Latency time.Duration // latency of agents, from the acceptance of a command to its result
}

// Goals of rollouts.
const (
	rolloutGoal   = 1.15                   // maximum ratio of the duration to the floor
	occupancyGoal = 95.0                   // minimum percentage of the window that is in use
	reuseGoal     = 50 * time.Millisecond  // maximum median time until a free place is used again
	slowReuseGoal = 250 * time.Millisecond // the same, 99th percentile
)

// Validate reports all invalid settings.
func (r Rollout) Validate() error {
	errs := []error{r.Config.Validate(), checkSizes("--hosts", r.Hosts), checkSizes("--windows", r.Windows...)}
	if r.Latency <= 0 {
		errs = append(errs, fmt.Errorf("--latency: %v is not positive", r.Latency))
	}
	return errors.Join(errs...)
}

// rolled holds the measurements of one rollout.
type rolled struct {
	path, floor time.Duration
	occupancy   float64 // percent
	reuse, slow time.Duration
}

// Run runs the benchmark.
func (r Rollout) Run(ctx context.Context) (Report, error) {
	return inLab(ctx, r.Config, func(l *lab) ([]*Table, error) {
		s, err := startSystem(ctx, l, fleet{agents: r.Hosts, more: []string{"--latency", r.Latency.String()}})
		if err != nil {
			return nil, err
		}
		defer s.stop()
		t := r.table()
		for _, window := range r.Windows {
			samples := make([]rolled, r.Runs)
			for i := range samples {
				if samples[i], err = r.measure(ctx, s, window); err != nil {
					return nil, fmt.Errorf("window of %d hosts: %w", window, err)
				}
				l.Log.WithFields(logrus.Fields{"window": window, "run": i + 1, "path_ms": samples[i].path.Milliseconds()}).Info("measured")
			}
			r.add(t, window, samples)
		}
		return []*Table{t}, nil
	})
}

func (r Rollout) measure(ctx context.Context, s *system, window int) (out rolled, err error) {
	body, err := json.Marshal(map[string]any{
		"action": procfleet.ActionStatus, "process": map[string]string{"namespace": "bench", "name": sample, "proc_name": sample},
		"hosts": hosts(0, r.Hosts), "rollout": map[string]int{"max": window},
	})
	if err != nil {
		return out, err
	}
	waves := (r.Hosts + window - 1) / window
	ctx, cancel := context.WithTimeoutCause(ctx, patience+5*time.Duration(waves)*r.Latency, errors.New("the rollout does not end"))
	defer cancel()
	begun := time.Now()
	id, err := s.wire.submit(body, "")
	if err != nil {
		return out, err
	}
	if err := until(ctx, "the rollout ends", pollEvery, func() bool {
		task, err := s.store.Task(ctx, id)
		return err == nil && task.State.Done()
	}); err != nil {
		return out, err
	}
	out.path = time.Since(begun)
	accepted, ended, err := s.moments(ctx, id)
	if err != nil {
		return out, err
	}
	var busy time.Duration
	for i := range accepted {
		busy += ended[i].Sub(accepted[i])
	}
	out.floor = busy / time.Duration(window)
	slices.SortFunc(accepted, time.Time.Compare)
	slices.SortFunc(ended, time.Time.Compare)
	out.occupancy = occupancy(accepted, ended, window)
	var reuse []time.Duration
	for i := window; i < len(accepted); i++ {
		reuse = append(reuse, max(0, accepted[i].Sub(ended[i-window])))
	}
	out.reuse, out.slow = quantile(reuse, 0.5), quantile(reuse, 0.99)
	return out, nil
}

// moments returns when the agents accepted the items of a task, and when the items ended.
func (s *system) moments(ctx context.Context, id procfleet.TaskID) (accepted, ended []time.Time, err error) {
	const page = 1000
	for cursor := ""; ; {
		results, next, err := s.store.Results(ctx, id, taskstore.ResultQuery{Cursor: cursor, Limit: page})
		if err != nil {
			return nil, nil, err
		}
		for i := range results {
			if results[i].State != procfleet.StateSucceeded {
				return nil, nil, fmt.Errorf("item %d is %s: %s", results[i].Index, results[i].State, results[i].Result.Message)
			}
			accepted, ended = append(accepted, results[i].Result.AcceptedAt), append(ended, results[i].Result.FinishedAt)
		}
		if cursor = next; next == "" {
			return accepted, ended, nil
		}
	}
}

// occupancy returns how much of the window was in use while hosts were waiting, in percent: from the
// first acceptance to the last.
func occupancy(accepted, ended []time.Time, window int) float64 {
	first, last := accepted[0], accepted[len(accepted)-1]
	var used time.Duration
	for i := range accepted {
		used += last.Sub(accepted[i])
		if ended[i].Before(last) {
			used -= last.Sub(ended[i])
		}
	}
	return 100 * float64(used) / float64(time.Duration(window)*last.Sub(first))
}

func (r Rollout) table() *Table {
	return &Table{
		Title:   fmt.Sprintf("Rollouts: a status task on %s hosts that take %v, POST to finished in Redis, ms", thousands(r.Hosts), r.Latency),
		Columns: []string{"window", "path", "floor", "ratio", "goal", "met", "occupancy, %", "goal", "met", "place used again", "p99", "goal", "met"},
		Notes: []string{
			"The floor is the sum of the times of all hosts, from the acceptance by the agent to its result, divided by the window.",
			"Occupancy is the used part of the window from the first acceptance to the last. A place is used again when the next agent accepts.",
		},
	}
}

func (r Rollout) add(t *Table, window int, samples []rolled) {
	of := func(value func(*rolled) time.Duration) time.Duration { return medianOf(samples, value) }
	path, floor := of(func(s *rolled) time.Duration { return s.path }), of(func(s *rolled) time.Duration { return s.floor })
	reuse, slow := of(func(s *rolled) time.Duration { return s.reuse }), of(func(s *rolled) time.Duration { return s.slow })
	used := make([]float64, len(samples))
	for i := range samples {
		used[i] = samples[i].occupancy
	}
	slices.Sort(used)
	times := ratio(path, floor)
	goal, met := atMost(times, rolloutGoal, "")
	occupied := used[len(used)/2]
	t.add(window, ms(path), ms(floor), times, goal, met,
		occupied, "≥ "+number(occupancyGoal), verdict(occupied >= occupancyGoal),
		ms(reuse), ms(slow), fmt.Sprintf("≤ %v, %v", reuseGoal, slowReuseGoal), verdict(reuse <= reuseGoal && slow <= slowReuseGoal))
}
