package operate

import (
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// snapshot is the state of a process that its actor published last, so that a status never
// waits for the actor. The zero value is an unknown process.
type snapshot struct {
	desired      supervise.Desired
	phase        supervise.Phase
	settled      bool // see supervise.State.Settled
	paused       bool // see supervise.State.Paused
	failures     int
	busy         string // work in progress; "" = none
	starting     string // pid file of the start, restart or supervise in progress; "" = none
	specStored   bool
	spec         agentproto.Spec
	known        procop.Knowledge
	changedAt    time.Time // last change of the reported state
	registeredAt time.Time
	startedAt    time.Time
	stoppedAt    time.Time
	retryAt      time.Time
	frozenUntil  time.Time
	givenUp      string // reason for giving up; "" = not given up
	quarantined  bool
	nextRunAt    time.Time
	restarts     int
	lastExit     *agentproto.LastExit

	quiet          bool      // see observer.quiet
	pidFileWritten time.Time // modification time of the pid file when it was read last
}

func (s *snapshot) supervised() bool { return s.desired == supervise.Up }

// hasPidFile reports whether path is the pid file of a process that is supervised, runs or is
// being started.
func (s *snapshot) hasPidFile(path string) bool {
	managed := s.specStored && (s.supervised() || !s.known.Main.IsZero() && proc.Alive(s.known.Main))
	return managed && samePidFile(s.spec.PidPath, path) || samePidFile(s.starting, path)
}

func samePidFile(a, b string) bool { return a != "" && filepath.Clean(a) == filepath.Clean(b) }

func (a *actor) publish() {
	m, st := &a.memory, &a.state
	s := &snapshot{
		desired: st.Desired, phase: st.Phase, settled: st.Settled(), paused: st.Paused, failures: st.Failures,
		specStored: st.SpecStored, spec: m.Spec, known: a.known(),
		registeredAt: m.RegisteredAt, startedAt: m.StartedAt, stoppedAt: m.StoppedAt, retryAt: a.auto.retryAt,
		frozenUntil: a.frozenUntil, nextRunAt: a.schedule.nextAt.Round(time.Millisecond).UTC(),
		givenUp: reporter{a}.givenUp(), quarantined: a.quarantined(), restarts: st.Restarts, lastExit: m.LastExit,
		quiet: observer{a}.quiet(), pidFileWritten: a.watch.pidFileWritten,
	}
	switch st.Work {
	case supervise.Operating:
		s.busy = procspec.ActionName(string(st.Op.Action))
		if op := a.ops[st.Op.ID].op; procspec.StartsProcess(op.Action) {
			s.starting = op.Spec.PidPath
		}
	case supervise.AutoStarting:
		s.busy = "automatic start"
	case supervise.Terminating:
		s.busy = "termination"
	case supervise.Idle:
	}
	before := a.snapshot.Load()
	if before == nil {
		before = &snapshot{}
	}
	s.changedAt = before.changedAt
	if s.differs(before) {
		s.changedAt = time.Now().UTC()
		defer a.engine.cfg.Changed()
	}
	a.snapshot.Store(s)
}

// facts holds the results of one search and of the measurements after it.
type facts struct {
	shown    bool // false = no search was made
	at       time.Time
	running  bool
	host     proc.Host
	process  proc.Facts
	version  string // answer of the spec's version command; "" = not known
	health   string
	pids     []int          // all running instances, if the spec has several
	wanted   int            // instances that the spec requires, if several
	tree     proc.TreeUsage // usage of the process and its descendants; zero = not measured
	evidence []string
}

// facts measures the process that a report found.
func (e inspector) facts(spec *agentproto.Spec, report *procop.Report) facts {
	f := facts{shown: true, at: time.Now().UTC(), evidence: report.Evidence}
	var err error
	if f.host, err = proc.ReadHost(); err != nil {
		f.evidence = append(f.evidence, err.Error())
	}
	if procspec.HasInstances(spec) {
		f.pids, f.wanted = alivePIDs(report.Instances), spec.Instances
	}
	if id := report.Found; !id.IsZero() {
		f.process, err = e.gauges.describe(id, f.host, proc.Describe)
		f.running = err == nil
		f.version, f.health = e.inquiries.known(id)
		f.tree = e.limiter.usageOf(id)
	}
	return f
}

// status combines facts with the published state of the process.
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

// phaseOf returns the phase, corrected by a newer search: the actor may not have handled its
// result yet, and does not follow unsupervised processes.
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

// gauges stores two values for each measured process: the CPU time, from which the next
// measurement computes the usage, and the start time, which would change whenever the clock
// is set.
type gauges struct {
	mu      sync.Mutex
	samples map[proc.Identity]gauge
}

type gauge struct {
	sample    proc.Sample
	startedAt time.Time
}

func newGauges() *gauges { return &gauges{samples: map[proc.Identity]gauge{}} }

// describe measures a process with the function by: [proc.Describe] or [proc.Measure].
func (g *gauges) describe(id proc.Identity, host proc.Host, by func(proc.Identity, proc.Host, proc.Sample) (proc.Facts, error)) (proc.Facts, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, known := g.samples[id]
	f, err := by(id, host, m.sample)
	if err != nil {
		return f, err
	}
	if known {
		f.StartedAt = m.startedAt
	}
	g.samples[id] = gauge{sample: f.Sample, startedAt: f.StartedAt}
	return f, nil
}

// sampledSince reports whether a process was measured after moment, a time since the host
// booted.
func (g *gauges) sampledSince(id proc.Identity, moment time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, known := g.samples[id]
	return known && m.sample.At > moment
}

// prune removes the processes for which gone returns true.
func (g *gauges) prune(gone func(proc.Identity) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.samples, func(id proc.Identity, _ gauge) bool { return gone(id) })
}
