package operate

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// snapshot is what a process's goroutine last published of itself, so that a
// status never has to wait for it. The zero value is a process never heard of.
type snapshot struct {
	phase        supervise.Phase
	supervised   bool
	settled      bool // see supervise.State.Settled
	failures     int
	busy         string // what is under way; "" = nothing
	kept         bool
	spec         agentproto.Spec
	known        knowledge
	registeredAt time.Time
	startedAt    time.Time
	retryAt      time.Time
}

func (a *actor) publish() {
	s := &snapshot{
		phase: a.state.Phase, supervised: a.state.Desired == supervise.Up, settled: a.state.Settled(), failures: a.state.Failures,
		kept: a.state.Kept, spec: a.spec,
		known:        knowledge{main: proc.Identity(a.state.Main), last: a.last, aliases: a.aliases, aliveAt: a.aliveAt},
		registeredAt: a.registeredAt, startedAt: a.startedAt, retryAt: a.retryAt,
	}
	switch a.state.Work {
	case supervise.Operating:
		s.busy = actionNames[string(a.state.Op.Action)]
	case supervise.AutoStarting:
		s.busy = "automatic start"
	case supervise.Idle:
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
	evidence []string
}

// facts reads the numbers behind the latest look.
func (r *run) facts() facts {
	f := facts{shown: true, at: time.Now().UTC(), evidence: append(r.evidence, r.seen.Evidence)}
	var err error
	if f.host, err = proc.ReadHost(); err != nil {
		f.evidence = append(f.evidence, err.Error())
	}
	if id := r.found(); !id.IsZero() {
		f.process, err = r.engine.gauges.describe(id, f.host)
		f.running = err == nil
	}
	return f
}

// status shows facts together with what is decided about the process.
func (s *snapshot) status(f facts) *agentproto.Status {
	st := &agentproto.Status{
		At: f.at, UTCOffset: int(f.host.UTCOffset / time.Second), Running: f.running, Supervised: s.supervised,
		Phase: string(s.phaseOf(f.running)), HostFreeKB: f.host.MemAvailable,
		RegisteredAt: s.registeredAt, LastStartedAt: s.startedAt, Failures: s.failures, NextRetryAt: s.retryAt,
		Evidence: clip(join(f.evidence...), agentproto.MaxMessage),
	}
	if s.busy != "" {
		st.Evidence = clip(join("busy: "+s.busy, st.Evidence), agentproto.MaxMessage)
	}
	if !f.running {
		return st
	}
	p := f.process
	st.PID, st.Command, st.Stat, st.Threads = p.Identity.PID, p.Cmdline, p.State, p.Threads
	st.StartedAt, st.ElapsedMS = p.StartedAt.UTC(), p.Elapsed.Milliseconds()
	st.UserMS, st.SystemMS = p.UserTime.Milliseconds(), p.SystemTime.Milliseconds()
	st.CPU, st.CPUAverage = p.CPUPercent, p.CPUPercentAll
	st.MemoryBytes, st.MemoryPercent = p.RSS, p.RSSPercent
	return st
}

// phaseOf is the phase, corrected by a look that is newer: the goroutine may
// not have heard yet, or looks at nothing it does not supervise.
func (s *snapshot) phaseOf(running bool) supervise.Phase {
	switch {
	case running && (s.phase == "" || s.phase == supervise.Unknown || s.phase == supervise.Stopped):
		return supervise.Running
	case !running && (s.phase == "" || s.phase == supervise.Unknown || s.phase == supervise.Running && !s.supervised):
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

func (g *gauges) describe(id proc.Identity, host proc.Host) (proc.Facts, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, known := g.marks[id]
	f, err := proc.Describe(id, host, m.sample)
	if err != nil {
		return f, err
	}
	if known {
		f.StartedAt = m.startedAt
	}
	g.marks[id] = mark{sample: f.Sample, startedAt: f.StartedAt}
	return f, nil
}

// prune forgets processes that are gone.
func (g *gauges) prune() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range g.marks {
		if !proc.Alive(id) {
			delete(g.marks, id)
		}
	}
}
