package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
)

// Supervise is the benchmark of supervision: its idle cost, and the delays of detection,
// restart and operations.
type Supervise struct {
	Config             // NATS, Redis and Start are ignored
	Agent       string // path of the agent program; default procfleet-agent or else `procfleet agent`
	Supervisord string // path of supervisord, which is measured for comparison; "" skips it
	Processes   int
	UpProcesses int           // number of processes of `procfleet up`; 0 skips this measurement
	Operations  int           // number of operations per burst
	Kills       int           // number of processes killed to measure the detection delay
	For         time.Duration // duration of each measurement of processor time
}

// Validate reports all invalid settings.
func (s Supervise) Validate() error {
	errs := []error{
		s.Config.Validate(), atLeast("--processes", s.Processes, 1), atLeast("--up-processes", s.UpProcesses, 0),
		atLeast("--operations", s.Operations, 1), atLeast("--kills", s.Kills, 1),
	}
	const most = 10_000
	for flag, n := range map[string]int{"--processes": s.Processes, "--up-processes": s.UpProcesses} {
		if n > most {
			errs = append(errs, fmt.Errorf("%s: %d is more than %d", flag, n, most))
		}
	}
	if s.Kills+s.Runs > s.Processes {
		errs = append(errs, fmt.Errorf("--kills and --runs: %d and %d are more than the %d processes, each of which is killed once", s.Kills, s.Runs, s.Processes))
	}
	if s.For < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("--for: %v is less than 100ms", s.For))
	}
	if runtime.GOOS != "linux" {
		errs = append(errs, fmt.Errorf("supervision requires Linux, this is %s", runtime.GOOS))
	}
	return errors.Join(errs...)
}

// upkeep is the idle cost of a supervisor.
type upkeep struct {
	what      string
	processes int
	cpu       float64 // used share of one processor
	rss       int     // resident memory in bytes
	goalCPU   float64 // maximum of cpu; 0: no goal
	goalRSS   int
}

// deaths holds the delays until a supervisor detected and restarted killed processes.
type deaths struct {
	what     string
	detected []time.Duration
	// restarted holds the delays until the restart of a process that was killed on an idle
	// host.
	restarted []time.Duration
}

// series holds the measurements of n operations of one kind.
type series struct {
	what    string
	n       int
	took    time.Duration
	threads int           // maximum number of threads of the agent; 0: not measured
	floor   time.Duration // duration without supervision; 0: no floor
}

// findings holds all measurements of the benchmark.
type findings struct {
	upkeeps []upkeep
	deaths  []deaths
	series  []series
	program int // size of the agent program in bytes
}

// Run runs the benchmark and stops every process that it started.
func (s Supervise) Run(ctx context.Context) (report Report, err error) {
	at, err := newSite(s.Procfleet)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, at.close()) }()
	found := &findings{}
	steps := []struct {
		what string
		do   func(context.Context, *site, *findings) error
	}{{"floor", s.measureBare}, {"agent", s.measureAgent}, {"supervisord", s.measureSupervisord}, {"up", s.measureUp}}
	for _, step := range steps {
		if err := step.do(ctx, at, found); err != nil {
			return Report{}, fmt.Errorf("%s: %w", step.what, err)
		}
		s.Log.WithFields(logrus.Fields{"of": step.what}).Info("measured")
	}
	return Report{Machine: hardware() + "; all processes on this machine", Tables: []*Table{
		found.upkeepTable(s.For), found.deathsTable(), found.seriesTable(), found.programTable(),
	}}, nil
}

// agentProgram returns the command of an agent without its flags.
func (s Supervise) agentProgram(p *plant) ([]string, error) {
	if s.Agent != "" {
		path, err := exec.LookPath(s.Agent)
		if err != nil {
			return nil, fmt.Errorf("--agent: %w", err)
		}
		return []string{path}, nil
	}
	if path, err := p.beside("procfleet-agent"); err == nil {
		return []string{path}, nil
	}
	path, err := p.procfleet()
	return []string{path, "agent"}, err
}

// Goals of supervision.
const (
	idleGoal    = 25 << 20 // maximum resident bytes of an agent without processes
	upGoal      = 0.03     // maximum share of one processor of `procfleet up`
	programGoal = 20 << 20 // maximum size of the agent program in bytes
)

func (f *findings) upkeepTable(d time.Duration) *Table {
	t := &Table{
		Title:   "Idle processes: processor time and memory of supervision",
		Columns: []string{"program", "processes", "CPU, % of one", "RSS, MiB", "goal", "met"},
		Notes:   []string{fmt.Sprintf("Processor time is user and system time during %v; RSS is measured at the end of that time.", d)},
	}
	for _, u := range f.upkeeps {
		goal, met := "", ""
		switch {
		case u.goalCPU > 0:
			goal, met = atMost(100*u.cpu, 100*u.goalCPU, " %")
		case u.goalRSS > 0:
			goal, met = atMost(mib(u.rss), mib(u.goalRSS), " MiB")
		}
		processes := "none"
		if u.processes > 0 {
			processes = thousands(u.processes)
		}
		t.add(u.what, processes, 100*u.cpu, mib(u.rss), goal, met)
	}
	return t
}

func (f *findings) deathsTable() *Table {
	t := &Table{
		Title:   "Deaths: from the kill to its detection, and to the restart of the process",
		Columns: []string{"program", "kills", "known, median ms", "known, p99 ms", "back, ms"},
		Notes: []string{"The floor waits for its own child process and starts it with the same command as the agent. An agent first searches for a successor " +
			"of the process. It restarts a process at once if the process has run for ten times start_interval, which is 1 s here; the limit on restarts is disabled (" + noRestartLimit + "). " +
			"supervisord restarts a process in the next round of a loop that runs every second. The times of supervisord are rounded up to milliseconds, the unit of its log."},
	}
	for _, d := range f.deaths {
		t.add(d.what, len(d.detected), ms(quantile(d.detected, 0.5)), ms(quantile(d.detected, 0.99)), ms(quantile(d.restarted, 0.5)))
	}
	return t
}

func (f *findings) seriesTable() *Table {
	t := &Table{
		Title:   "Adoption and bursts",
		Columns: []string{"what", "number", "ms", "per second", "floor, ms", "ratio", "most threads"},
		Notes: []string{"Adoption is the time from the start of the agent, after a SIGKILL, until the agent has adopted every process. " +
			"The floors of reloads are runs of the same commands without an agent, 64 concurrently, in " + bareShell + " and in the account's shell, which the agent uses. " +
			"The agent does not check a process after a reload."},
	}
	for _, d := range f.series {
		var floor, times, threads any = "", "", ""
		if d.floor > 0 {
			floor, times = ms(d.floor), ratio(d.took, d.floor)
		}
		if d.threads > 0 {
			threads = d.threads
		}
		t.add(d.what, d.n, ms(d.took), perSecond(d.n, d.took), floor, times, threads)
	}
	return t
}

func (f *findings) programTable() *Table {
	t := &Table{Title: "Program", Columns: []string{"program", "MiB", "goal", "met"}}
	goal, met := atMost(mib(f.program), mib(programGoal), " MiB")
	t.add("agent", mib(f.program), goal, met)
	return t
}

// idle measures the processor share of a process during d, and its resident bytes.
func idle(ctx context.Context, pid int, d time.Duration) (cpu float64, rss int, err error) {
	before, begun := cpuTime(pid), time.Now()
	if err := wait(ctx, d); err != nil {
		return 0, 0, err
	}
	rss = residentSize(pid)
	if rss == 0 {
		return 0, 0, errors.New("the process has ended")
	}
	return float64(cpuTime(pid)-before) / float64(time.Since(begun)), rss, nil
}

// until polls done at the interval every until done returns true, at most for patience.
func until(ctx context.Context, what string, every time.Duration, done func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s: not within %v", what, patience))
	defer cancel()
	for !done() {
		if err := wait(ctx, every); err != nil {
			return err
		}
	}
	return nil
}

// shortName returns the name of a program as shown in tables.
func shortName(argv []string) string {
	return strings.Join(append([]string{filepath.Base(argv[0])}, argv[1:]...), " ")
}
