package operate

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// names are what reports call a process by, beside its key.
type names struct{ namespace, name, procName string }

func namesOf(s agentproto.Spec) names { return names{s.Namespace, s.Name, s.ProcName} }

func (a *actor) names() names {
	if a.state.Kept {
		return namesOf(a.spec)
	}
	return a.named
}

// resting is what is remembered of a key that needs no actor: that its process
// was stopped. There may be thousands of them.
type resting struct {
	snapshot *snapshot
	saved    digest // of its record in the journal
}

func (a *actor) rest() resting { return resting{snapshot: a.snapshot.Load(), saved: a.saved} }

// lay takes over as a resting one what an earlier agent process remembered.
func (e *Engine) lay(a *actor) {
	a.publish()
	s := *a.snapshot.Load()
	s.changedAt = a.stoppedAt
	a.snapshot.Store(&s)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.resting[a.key] = a.rest()
}

// wake takes up what rest left.
func (a *actor) wake(left resting) {
	s := left.snapshot
	a.state.Desired, a.state.Phase = supervise.Down, s.phase
	a.named, a.saved = s.names, left.saved
	a.startedAt, a.stoppedAt, a.changedAt = s.startedAt, s.stoppedAt, s.changedAt
	a.snapshot.Store(s)
}

// countDown notes since when a key is wanted down; the zero time says that it
// is not any more. Beyond the limit the one that was stopped longest ago goes.
func (e *Engine) countDown(key string, since time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.downs, key)
	if since.IsZero() {
		return
	}
	e.downs[key] = since
	if len(e.downs) > e.cfg.DownLimit {
		oldest := e.oldestDown()
		delete(e.downs, oldest)
		e.actor(oldest).mailbox.put(letGo{})
	}
}

func (e *Engine) oldestDown() (oldest string) {
	for key, since := range e.downs {
		if at, ok := e.downs[oldest]; !ok || since.Before(at) {
			oldest = key
		}
	}
	return oldest
}

// letGo forgets that the process was stopped, unless something is just being
// done with it.
func (a *actor) letGo() {
	if a.state.Desired != supervise.Down || a.state.Work != supervise.Idle || a.state.Main != (supervise.Identity{}) {
		return
	}
	a.state.Desired, a.stoppedAt = supervise.None, time.Time{}
	a.publish()
	a.trySave()
}

// standing is what tells one report of a process from the next, figures apart.
type standing struct {
	listed  bool
	desired supervise.Desired
	phase   supervise.Phase
	main    proc.Identity
}

func (s *snapshot) reported() standing {
	if !s.listed() {
		return standing{}
	}
	return standing{listed: true, desired: s.desired, phase: s.phase, main: s.known.Main}
}

// listed reports whether the engine knows anything of the process that whoever
// looks up the host should see.
func (s *snapshot) listed() bool {
	return s.kept || s.desired == supervise.Down || !s.known.Main.IsZero()
}

// Processes returns every process that the engine knows, those that are kept
// alive first, each group by key. It looks for none: the figures are those of
// the processes that are followed anyway, which costs one small file each. Of
// what is not followed Status.At says when it was seen last.
func (e *Engine) Processes() []agentproto.ManagedProcess {
	known := e.snapshots()
	host := e.readHost()
	all := make([]agentproto.ManagedProcess, 0, len(known))
	room := inquiryLimit
	for _, key := range inOrder(known) {
		all = append(all, e.managed(key, known[key], host))
		if s := known[key]; room > 0 && all[len(all)-1].Status.Running && s.busy == "" && e.keepVersion(s.known.Main, &s.spec) {
			room-- // each answer makes a report, which asks the next ones
		}
	}
	return all
}

func (e *Engine) readHost() proc.Host {
	host, err := proc.ReadHost()
	if err != nil {
		e.cfg.Log.WithError(err).Debug("process metrics unreadable")
	}
	return host
}

// inOrder are the keys of those that are kept alive, then the others.
func inOrder(known map[string]*snapshot) []string {
	keys := slices.Collect(maps.Keys(known))
	slices.SortFunc(keys, func(a, b string) int {
		if up := known[a].supervised(); up != known[b].supervised() {
			if up {
				return -1
			}
			return 1
		}
		return cmp.Compare(a, b)
	})
	return keys
}

// snapshots are those of every process that is listed.
func (e *Engine) snapshots() map[string]*snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := make(map[string]*snapshot, len(e.actors)+len(e.resting))
	for key, left := range e.resting {
		known[key] = left.snapshot
	}
	for key, a := range e.actors {
		if s := a.snapshot.Load(); s.listed() {
			known[key] = s
		}
	}
	return known
}

func (e *Engine) managed(key string, s *snapshot, host proc.Host) agentproto.ManagedProcess {
	f := facts{shown: true, at: time.Now().UTC(), host: host}
	if s.supervised() && procspec.HasInstances(&s.spec) { // of others only the main one is followed
		f.pids, f.wanted = pids(s.known.Instances), s.spec.Instances
	}
	if main := s.known.Main; !main.IsZero() {
		var err error
		f.process, err = e.gauges.describe(main, host, proc.Measure)
		f.running = err == nil
		if s.quiet && f.process.Suspended() {
			e.suspended(key)
		}
		f.tree = e.limiter.usageOf(main)
		f.version, f.health = e.inquiries.known(main)
	} else if !s.supervised() {
		f.at = s.changedAt
	}
	m := agentproto.ManagedProcess{
		Key: key, Namespace: s.names.namespace, Name: s.names.name, ProcName: s.names.procName,
		Desired: agentproto.DesiredNone, Status: *s.status(f),
	}
	brief(&m.Status)
	switch s.desired {
	case supervise.Up:
		m.Desired = agentproto.DesiredUp
	case supervise.Down:
		m.Desired = agentproto.DesiredDown
	case supervise.None:
	}
	return m
}

// brief leaves out of a status what is for people who look at one process, and
// digits that mean nothing: an agent may report thousands.
func brief(s *agentproto.Status) {
	s.Evidence = ""
	for _, t := range []*time.Time{&s.At, &s.StartedAt, &s.RegisteredAt, &s.LastStartedAt, &s.NextRetryAt, &s.NextRunAt} {
		*t = t.Truncate(time.Millisecond)
	}
	for _, percent := range []*float64{&s.CPU, &s.CPUAverage, &s.MemoryPercent, &s.TreeCPU} {
		*percent = math.Round(*percent*100) / 100
	}
}
