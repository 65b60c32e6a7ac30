package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
)

// Reports measures what it costs that agents report their processes.
type Reports struct {
	Config
	Agents    int
	Processes int           // of each agent
	Every     time.Duration // between two reports of an agent
	For       time.Duration // how long processor time is counted
	PProf     string        // address on loopback for profiles of the worker; "" = none
}

// Validate reports everything that is wrong.
func (r Reports) Validate() error {
	errs := []error{r.Config.Validate(), checkSizes("--agents", []int{r.Agents}), atLeast("--processes", r.Processes, 1)}
	for flag, d := range map[string]time.Duration{"--every": r.Every, "--for": r.For} {
		if d < 100*time.Millisecond {
			errs = append(errs, fmt.Errorf("%s: %v is less than 100ms", flag, d))
		}
	}
	return errors.Join(errs...)
}

// rate of reports, per second.
func (r Reports) rate() float64 { return float64(r.Agents) / r.Every.Seconds() }

// reportRun is one run. Processor times are per second of the clock, so that a
// second is one processor.
type reportRun struct {
	floor map[string]time.Duration
	first map[string]time.Duration // of each host's first report, less without
	spent map[string]time.Duration // of those that follow, less without
}

// Run measures.
func (r Reports) Run(ctx context.Context) (Report, error) {
	var report Report
	err := inLab(ctx, r.Config, func(l *lab) error {
		s, err := startSystem(ctx, l, fleet{agents: r.Agents, worker: r.profiles()})
		if err != nil {
			return err
		}
		defer s.stop()
		runs := make([]reportRun, r.Runs)
		size := 0
		for i := range runs {
			if i > 0 {
				if err := s.restartFleet(ctx, fleet{agents: r.Agents}); err != nil {
					return err
				}
			}
			if size, err = r.run(ctx, s, &runs[i]); err != nil {
				return err
			}
			l.Log.WithFields(logrus.Fields{"run": i + 1, "worker": runs[i].spent[worker], "redis": runs[i].spent[redisServer]}).Info("measured")
		}
		report = l.report(ctx, r.table(runs, size, s.peak(worker)))
		return nil
	})
	return report, err
}

func (r Reports) profiles() []string {
	if r.PProf == "" {
		return nil
	}
	return []string{"--status-http", r.PProf, "--pprof"}
}

// run counts the processor time of a system whose agents only announce
// themselves, then that of one whose agents also report, then the floor's. It
// returns the bytes of a report.
func (r Reports) run(ctx context.Context, s *system, out *reportRun) (size int, err error) {
	idle, err := count(ctx, s, r.For)
	if err != nil {
		return 0, err
	}
	if size, err = r.sample(ctx, s); err != nil {
		return 0, err
	}
	// The first report of each host enters its processes; what goes on for
	// ever is that they are there.
	entering, err := count(ctx, s, r.Every+r.Every/10)
	if err != nil {
		return 0, err
	}
	busy, err := count(ctx, s, r.For)
	if err != nil {
		return 0, err
	}
	if err := r.requireFresh(ctx, s); err != nil {
		return 0, err
	}
	out.first, out.spent = less(entering, idle), less(busy, idle)
	if err := s.restartFleet(ctx, fleet{agents: r.Agents}); err != nil {
		return 0, err
	}
	out.floor, err = r.measureFloor(ctx, s, size, idle)
	return size, err
}

// less is what was used beyond what is used anyway.
func less(used, idle map[string]time.Duration) map[string]time.Duration {
	more := map[string]time.Duration{}
	for name := range used {
		more[name] = max(0, used[name]-idle[name])
	}
	return more
}

// count is the processor time that each process uses in a second, over d.
func count(ctx context.Context, s *system, d time.Duration) (map[string]time.Duration, error) {
	before, begun := s.cpu(), time.Now()
	if err := wait(ctx, d); err != nil {
		return nil, err
	}
	used := spent(before, s.cpu())
	for name := range used {
		used[name] = perSecondOf(used[name], time.Since(begun))
	}
	return used, nil
}

func perSecondOf(used, in time.Duration) time.Duration {
	return time.Duration(float64(used) / in.Seconds())
}

// sample starts the agents that report, and returns how long a report is.
func (r Reports) sample(ctx context.Context, s *system) (int, error) {
	sub, err := s.lab.conn.SubscribeSync("procfleet.processes.*")
	if err != nil {
		return 0, err
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection ends soon
	if err := s.restartFleet(ctx, fleet{agents: r.Agents, more: []string{
		"--processes", strconv.Itoa(r.Processes), "--report-every", r.Every.String(),
	}}); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	msg, err := sub.NextMsgWithContext(ctx)
	if err != nil {
		return 0, fmt.Errorf("no agent reports: %w", err)
	}
	return len(msg.Data), nil
}

// requireFresh fails unless the store has what every agent reported last.
func (r Reports) requireFresh(ctx context.Context, s *system) error {
	const page = 1000
	stale := 0
	for first := 0; first < r.Agents; first += page {
		hosts := make([]procfleet.Host, 0, page)
		for i := first; i < min(first+page, r.Agents); i++ {
			h, err := procfleet.NewHost(0, simulate.Address(i).String())
			if err != nil {
				return err
			}
			hosts = append(hosts, h)
		}
		found, err := s.store.Reported(ctx, hosts)
		if err != nil {
			return err
		}
		// A report may be on its way, and reading takes a while.
		oldest := time.Now().Add(-r.Every - r.Every/10 - 5*time.Second)
		for i := range found {
			if len(found[i].Processes) != r.Processes || found[i].At.Before(oldest) {
				stale++
			}
		}
	}
	if stale > 0 {
		return fmt.Errorf("of %d hosts the store does not have the last report", stale)
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

const reportsGoal = 0.25 // of one processor, for worker and Redis

func (r Reports) table(runs []reportRun, size, peak int) *Table {
	t := &Table{
		Title: "Reports of processes: processor time that they cost, in shares of one processor",
		Columns: []string{
			"agents", "processes", "reports/s", "KiB each", "worker CPU", "redis CPU", "nats-server CPU", "all CPU", "floor CPU", "ratio",
			"worker + redis CPU", "goal", "met", "first CPU", "worker MiB",
		},
		Notes: []string{fmt.Sprintf("User and system, counted for %v each: with reports every %v, less the same system without. The floor is bare "+
			"NATS and Redis and one client that publishes and receives the same bytes at the same rate and writes them to one hash, "+
			"500 in a call. First is what worker and Redis use during the first report of every host, which enters its processes. Memory is the most that was resident.", r.For, r.Every)},
	}
	of := func(column func(*reportRun) time.Duration) float64 { return medianOf(runs, column).Seconds() }
	used := func(name string) float64 { return of(func(run *reportRun) time.Duration { return run.spent[name] }) }
	all, floor := 0.0, 0.0
	for _, name := range []string{worker, redisServer, natsServer} {
		all += used(name)
	}
	for _, name := range []string{client, redisServer, natsServer} {
		floor += of(func(run *reportRun) time.Duration { return run.floor[name] })
	}
	times := 0.0
	if floor > 0 { // processor time is told in units that may be too coarse
		times = all / floor
	}
	goal, met := atMost(used(worker)+used(redisServer), reportsGoal, "")
	first := of(func(run *reportRun) time.Duration { return run.first[worker] + run.first[redisServer] })
	t.add(r.Agents, r.Processes, r.rate(), float64(size)/(1<<10), used(worker), used(redisServer), used(natsServer), all, floor, times,
		used(worker)+used(redisServer), goal, met, first, float64(peak)/(1<<20))
	return t
}
