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

// Reports is the benchmark of process reports.
type Reports struct {
	Config
	Agents    int
	Processes int           // number of processes per agent
	Every     time.Duration // report interval of an agent
	For       time.Duration // duration of each measurement
	PProf     string        // loopback address on which the worker serves profiles; "" disables profiles
}

// Validate reports all invalid settings.
func (r Reports) Validate() error {
	errs := []error{r.Config.Validate(), checkSizes("--agents", r.Agents), atLeast("--processes", r.Processes, 1)}
	for flag, d := range map[string]time.Duration{"--every": r.Every, "--for": r.For} {
		if d < 100*time.Millisecond {
			errs = append(errs, fmt.Errorf("%s: %v is less than 100ms", flag, d))
		}
	}
	return errors.Join(errs...)
}

// rate returns the number of reports per second.
func (r Reports) rate() float64 { return float64(r.Agents) / r.Every.Seconds() }

// reportRun holds the measurements of one run. Processor times are per second of wall
// time, by process name: one second corresponds to one fully used processor.
type reportRun struct {
	floor map[string]time.Duration
	first map[string]time.Duration // during the first report of each host, minus the idle usage
	spent map[string]time.Duration // during later reports, minus the idle usage
}

// Run runs the benchmark.
func (r Reports) Run(ctx context.Context) (Report, error) {
	return inLab(ctx, r.Config, func(l *lab) ([]*Table, error) {
		s, err := startSystem(ctx, l, fleet{agents: r.Agents, worker: r.profiles()})
		if err != nil {
			return nil, err
		}
		defer s.stop()
		runs := make([]reportRun, r.Runs)
		size := 0
		for i := range runs {
			if i > 0 {
				if err := s.restartFleet(ctx, fleet{agents: r.Agents}); err != nil {
					return nil, err
				}
			}
			if size, err = r.run(ctx, s, &runs[i]); err != nil {
				return nil, err
			}
			l.Log.WithFields(logrus.Fields{"run": i + 1, "worker": runs[i].spent[worker], "redis": runs[i].spent[redisServer]}).Info("measured")
		}
		return []*Table{r.table(runs, size, l.plant.peak(worker))}, nil
	})
}

func (r Reports) profiles() []string {
	if r.PProf == "" {
		return nil
	}
	return []string{"--status-http", r.PProf, "--pprof"}
}

// run measures processor times: of the system without reports, of the system with reports,
// and of the floor. It returns the size of a report in bytes.
func (r Reports) run(ctx context.Context, s *system, out *reportRun) (size int, err error) {
	idle, err := count(ctx, s, r.For)
	if err != nil {
		return 0, err
	}
	if size, err = r.sample(ctx, s); err != nil {
		return 0, err
	}
	// The first report of a host inserts its processes; later reports only confirm them.
	// Measure both separately.
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

// less returns used minus idle for each process, at least 0.
func less(used, idle map[string]time.Duration) map[string]time.Duration {
	more := map[string]time.Duration{}
	for name := range used {
		more[name] = max(0, used[name]-idle[name])
	}
	return more
}

// count measures the processor time of each process during d, per second of wall time.
func count(ctx context.Context, s *system, d time.Duration) (map[string]time.Duration, error) {
	before, begun := s.lab.plant.cpu(), time.Now()
	if err := wait(ctx, d); err != nil {
		return nil, err
	}
	used := spent(before, s.lab.plant.cpu())
	for name := range used {
		used[name] = perSecondOf(used[name], time.Since(begun))
	}
	return used, nil
}

func perSecondOf(used, in time.Duration) time.Duration {
	return time.Duration(float64(used) / in.Seconds())
}

// sample starts the reporting agents and returns the size of a report in bytes.
func (r Reports) sample(ctx context.Context, s *system) (int, error) {
	sub, err := s.lab.conn.SubscribeSync("procfleet.processes.*")
	if err != nil {
		return 0, err
	}
	defer func() { _ = sub.Unsubscribe() }() // closing the connection also ends the subscription
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

// requireFresh returns an error unless the store has a recent report of every agent.
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
		// Tolerate reports in transit and the duration of the read.
		oldest := time.Now().Add(-r.Every - r.Every/10 - 5*time.Second)
		for i := range found {
			if len(found[i].Processes) != r.Processes || found[i].At.Before(oldest) {
				stale++
			}
		}
	}
	if stale > 0 {
		return fmt.Errorf("the store lacks the last report of %d hosts", stale)
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

const reportsGoal = 0.25 // maximum processors used by worker and Redis together

func (r Reports) table(runs []reportRun, size, peak int) *Table {
	t := &Table{
		Title: "Reports of processes: processor time that they cost, in shares of one processor",
		Columns: []string{
			"agents", "processes", "reports/s", "KiB each", "worker CPU", "redis CPU", "nats-server CPU", "all CPU", "floor CPU", "ratio",
			"worker + redis CPU", "goal", "met", "first CPU", "worker MiB",
		},
		Notes: []string{fmt.Sprintf("Processor time is user and system time during %v: with reports every %v, minus the time without reports. The floor is bare "+
			"NATS and Redis, and one client that publishes and receives the same bytes at the same rate and writes them to one hash, "+
			"500 per call. First CPU is the time of worker and Redis during the first report of every host, which inserts the host's processes. "+
			"MiB is the maximum resident memory.", r.For, r.Every)},
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
	if floor > 0 { // 0 if the floor is shorter than the unit of processor time
		times = all / floor
	}
	goal, met := atMost(used(worker)+used(redisServer), reportsGoal, "")
	first := of(func(run *reportRun) time.Duration { return run.first[worker] + run.first[redisServer] })
	t.add(r.Agents, r.Processes, r.rate(), float64(size)/(1<<10), used(worker), used(redisServer), used(natsServer), all, floor, times,
		used(worker)+used(redisServer), goal, met, first, mib(peak))
	return t
}
