package operate

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// snapshot is what a process's goroutine last published of itself, so that a
// status never has to wait for it. The zero value is a process never heard of.
type snapshot struct {
	desired      supervise.Desired
	phase        supervise.Phase
	settled      bool // see supervise.State.Settled
	held         bool // see supervise.State.Held
	failures     int
	busy         string // what is under way; "" = nothing
	kept         bool
	spec         agentproto.Spec
	names        names
	known        procop.Knowledge
	changedAt    time.Time // when what is reported of the process did
	registeredAt time.Time
	startedAt    time.Time
	stoppedAt    time.Time
	retryAt      time.Time
	frozenUntil  time.Time
	givenUp      string // why; "" = it was not
	quarantined  bool   // the agent leaves it alone
	nextRunAt    time.Time
	restarts     int
	lastExit     *agentproto.LastExit

	quiet          bool      // see actor.quiet
	pidFileWritten time.Time // when the pid file was read that was read last
}

// supervised reports whether the process is kept alive.
func (s *snapshot) supervised() bool { return s.desired == supervise.Up }

func (a *actor) publish() {
	s := &snapshot{
		desired: a.state.Desired, phase: a.state.Phase, settled: a.state.Settled(), held: a.state.Held, failures: a.state.Failures,
		kept: a.state.Kept, spec: a.spec, names: a.names(), changedAt: a.changedAt,
		known:        a.known(),
		registeredAt: a.registeredAt, startedAt: a.startedAt, stoppedAt: a.stoppedAt, retryAt: a.retryAt,
		frozenUntil: a.frozenUntil, nextRunAt: a.schedule.nextAt.Round(time.Millisecond).UTC(),
		givenUp: a.givenUp(), quarantined: a.quarantined(), restarts: a.state.Restarts, lastExit: a.lastExit,
		quiet: a.quiet(), pidFileWritten: a.pidFileWritten,
	}
	switch a.state.Work {
	case supervise.Operating:
		s.busy = procspec.ActionName(string(a.state.Op.Action))
	case supervise.AutoStarting:
		s.busy = "automatic start"
	case supervise.TakingDown:
		s.busy = "take-down"
	case supervise.Idle:
	}
	var was standing
	if before := a.snapshot.Load(); before != nil {
		was = before.reported()
	}
	if s.reported() != was {
		a.changedAt = time.Now().UTC()
		s.changedAt = a.changedAt
		defer a.engine.cfg.Changed()
	}
	a.snapshot.Store(s)
}

// awaitLook notes, before the loop runs, that nobody has looked at the process
// yet.
func (a *actor) awaitLook() {
	s := *a.snapshot.Load()
	s.settled = false
	a.snapshot.Store(&s)
}

// facts are what one look gave.
type facts struct {
	shown    bool // false = nobody looked
	at       time.Time
	running  bool
	host     proc.Host
	process  proc.Facts
	version  string // what the spec's commands say of the process; "" = not asked
	health   string
	pids     []int          // of all instances, if there are several
	wanted   int            // how many there should be, if several
	tree     proc.TreeUsage // of the process with all that belongs to it; zero = not measured
	evidence []string
}

// facts measures the process that a report found.
func (e *Engine) facts(spec *agentproto.Spec, report *procop.Report) facts {
	f := facts{shown: true, at: time.Now().UTC(), evidence: report.Evidence}
	var err error
	if f.host, err = proc.ReadHost(); err != nil {
		f.evidence = append(f.evidence, err.Error())
	}
	if procspec.HasInstances(spec) {
		f.pids, f.wanted = pids(report.Instances), spec.Instances
	}
	if id := report.Found; !id.IsZero() {
		f.process, err = e.gauges.describe(id, f.host, proc.Describe)
		f.running = err == nil
		f.version, f.health = e.inquiries.known(id)
		f.tree = e.limiter.usageOf(id)
	}
	return f
}

// status shows facts together with what is decided about the process.
func (s *snapshot) status(f facts) *agentproto.Status {
	st := &agentproto.Status{
		At: f.at, UTCOffset: int(f.host.UTCOffset / time.Second), Running: f.running, Supervised: s.supervised(),
		Phase: string(s.phaseOf(f.running)), HostFreeKB: f.host.MemAvailable,
		RegisteredAt: s.registeredAt, LastStartedAt: s.startedAt, Failures: s.failures, NextRetryAt: s.retryAt,
		FrozenUntil: s.frozenUntil, NextRunAt: s.nextRunAt, Restarts: s.restarts, LastExit: s.lastExit,
		Evidence: procop.Clip(procop.Join(f.evidence...), agentproto.MaxMessage),
	}
	if s.givenUp != "" {
		st.Evidence = procop.Clip(procop.Join("given up: "+s.givenUp, st.Evidence), agentproto.MaxMessage)
	}
	if s.busy != "" {
		st.Evidence = procop.Clip(procop.Join("busy: "+s.busy, st.Evidence), agentproto.MaxMessage)
	}
	st.Instances = f.wanted
	if !f.running {
		return st
	}
	st.PIDs = f.pids
	p := f.process
	st.PID, st.Command, st.Stat, st.Threads = p.Identity.PID, p.Cmdline, p.State, p.Threads
	st.StartedAt, st.ElapsedMS = p.StartedAt.UTC(), p.Elapsed.Milliseconds()
	st.UserMS, st.SystemMS = p.UserTime.Milliseconds(), p.SystemTime.Milliseconds()
	st.CPU, st.CPUAverage = p.CPUPercent, p.CPUPercentAll
	st.MemoryBytes, st.MemoryPercent = p.RSS, p.RSSPercent
	st.Version, st.Health = f.version, f.health
	st.TreeCPU, st.TreeMemoryBytes = f.tree.CPU, f.tree.RSS
	return st
}

// phaseOf is the phase, corrected by a look that is newer: the goroutine may
// not have heard yet, or looks at nothing it does not supervise.
func (s *snapshot) phaseOf(running bool) supervise.Phase {
	switch {
	case running && (s.phase == "" || s.phase == supervise.Unknown || s.phase == supervise.Stopped):
		return supervise.Running
	case !running && (s.phase == "" || s.phase == supervise.Unknown || s.phase == supervise.Running && !s.supervised()):
		return supervise.Stopped
	case !running && s.phase == supervise.Running:
		return supervise.Exited
	}
	return s.phase
}

// gauges remembers of each process that was shown what makes the next showing
// right: the CPU time then, and the start time that was shown, which would
// move whenever the clock is set.
type gauges struct {
	mu    sync.Mutex
	marks map[proc.Identity]mark
}

type mark struct {
	sample    proc.Sample
	startedAt time.Time
}

func newGauges() *gauges { return &gauges{marks: map[proc.Identity]mark{}} }

// describe reads a process by [proc.Describe] or [proc.Measure].
func (g *gauges) describe(id proc.Identity, host proc.Host, by func(proc.Identity, proc.Host, proc.Sample) (proc.Facts, error)) (proc.Facts, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, known := g.marks[id]
	f, err := by(id, host, m.sample)
	if err != nil {
		return f, err
	}
	if known {
		f.StartedAt = m.startedAt
	}
	g.marks[id] = mark{sample: f.Sample, startedAt: f.StartedAt}
	return f, nil
}

// sampledSince reports whether a process was read after a moment, which counts
// from the boot of the host.
func (g *gauges) sampledSince(id proc.Identity, moment time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, known := g.marks[id]
	return known && m.sample.At > moment
}

// prune forgets processes that are gone.
func (g *gauges) prune(gone func(proc.Identity) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range g.marks {
		if gone(id) {
			delete(g.marks, id)
		}
	}
}
