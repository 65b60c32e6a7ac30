package operate

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// resting is the state of a key whose process was stopped and that needs no actor. There may
// be thousands of them.
type resting struct {
	snapshot *snapshot
	saved    digest // digest of the key's record in the journal
}

func (a *actor) rest() resting { return resting{snapshot: a.snapshot.Load(), saved: a.memory.saved} }

// wake restores the state that rest returned.
func (a *actor) wake(left resting) {
	s := left.snapshot
	a.state.Desired, a.state.Phase = supervise.Down, s.phase
	a.memory.Spec, a.memory.saved = namesOnly(s.spec), left.saved
	a.memory.StartedAt, a.memory.StoppedAt = s.startedAt, s.stoppedAt
	a.snapshot.Store(s)
}

// countDown records since when a key's process is stopped by request; zero = it is not.
// Beyond Config.DownLimit, the process that was stopped longest ago is forgotten.
func (e *Engine) countDown(key string, since time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.downs, key)
	if since.IsZero() {
		return
	}
	e.downs[key] = since
	if len(e.downs) <= e.cfg.DownLimit {
		return
	}
	oldest := key
	for other, at := range e.downs {
		if at.Before(e.downs[oldest]) {
			oldest = other
		}
	}
	delete(e.downs, oldest)
	e.actor(oldest).mailbox.put(forgetDown{})
}

// forgetDown forgets that the process was stopped, unless it runs or work is in progress.
func (a *actor) forgetDown() {
	if a.state.Desired != supervise.Down || a.state.Work != supervise.Idle || a.state.Main != (supervise.Identity{}) {
		return
	}
	a.state.Desired, a.memory.StoppedAt = supervise.None, time.Time{}
	a.publish()
	a.save()
}

// differs reports whether a change since the snapshot before has to be reported at once.
func (s *snapshot) differs(before *snapshot) bool {
	if !s.listed() || !before.listed() {
		return s.listed() != before.listed()
	}
	return s.desired != before.desired || s.phase != before.phase || s.known.Main != before.known.Main
}

// listed reports whether lists of the host's processes include the process.
func (s *snapshot) listed() bool {
	return s.specStored || s.desired == supervise.Down || !s.known.Main.IsZero()
}

// Processes returns all known processes: the supervised ones first, each group sorted by
// key. It does not search: it measures only processes with a known pid, at the cost of one
// small file each. For a process that is neither running nor supervised, Status.At is the
// time of the last state change.
func (e *Engine) Processes() []agentproto.ManagedProcess {
	known := e.snapshots()
	host := e.readHost()
	all := make([]agentproto.ManagedProcess, 0, len(known))
	refreshes := inquiryLimit
	for _, key := range inOrder(known) {
		m, s := e.managed(key, known[key], host), known[key]
		all = append(all, m)
		if refreshes > 0 && m.Status.Running && s.busy == "" && e.inquiries.refreshVersion(s.known.Main, &s.spec) {
			refreshes-- // each answer triggers a report, which refreshes further versions
		}
	}
	return all
}

// Overview returns all known processes in the order of [Engine.Processes], with their state
// and next automatic action, for display on this host. It neither searches nor waits for
// operations.
func (e *Engine) Overview() []local.Process {
	known := e.snapshots()
	host := e.readHost()
	all := make([]local.Process, 0, len(known))
	for _, key := range inOrder(known) {
		s := known[key]
		m := e.managed(key, s, host)
		all = append(all, s.overview(&m))
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

// inOrder returns the sorted keys, those of supervised processes first.
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

func (e *Engine) managed(key string, s *snapshot, host proc.Host) agentproto.ManagedProcess {
	f := facts{shown: true, at: time.Now().UTC(), host: host}
	if s.supervised() && procspec.HasInstances(&s.spec) { // instances of other processes are not followed
		f.pids, f.wanted = alivePIDs(s.known.Instances), s.spec.Instances
	}
	if main := s.known.Main; !main.IsZero() {
		var err error
		f.process, err = e.gauges.describe(main, host, proc.Measure)
		f.running = err == nil
		if s.quiet && f.process.Suspended() {
			e.withActor(key, func(a *actor) { a.mailbox.remind(supervise.Swept{}) })
		}
		f.tree = e.limiter.usageOf(main)
		f.version, f.health = e.inquiries.known(main)
	} else if !s.supervised() {
		f.at = s.changedAt
	}
	m := agentproto.ManagedProcess{
		Key: key, Namespace: s.spec.Namespace, Name: s.spec.Name, ProcName: s.spec.ProcName,
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

// brief removes from a status the details that are useful only for a single process, and
// insignificant digits: an agent may report thousands of processes.
func brief(s *agentproto.Status) {
	s.Evidence = ""
	for _, t := range []*time.Time{&s.At, &s.StartedAt, &s.RegisteredAt, &s.LastStartedAt, &s.NextRetryAt, &s.NextRunAt} {
		*t = t.Truncate(time.Millisecond)
	}
	for _, percent := range []*float64{&s.CPU, &s.CPUAverage, &s.MemoryPercent, &s.TreeCPU} {
		*percent = math.Round(*percent*100) / 100
	}
}

// overview converts a snapshot and its report for [Engine.Overview].
func (s *snapshot) overview(m *agentproto.ManagedProcess) local.Process {
	st := &m.Status
	p := local.Process{
		Key: m.Key, Namespace: m.Namespace, Name: m.Name, ProcName: m.ProcName, Desired: m.Desired,
		State: st.Phase, PID: st.PID, PIDs: slices.Clone(st.PIDs), Since: s.changedAt,
		Restarts: st.Restarts, Failures: st.Failures, LastExit: st.LastExit,
		Limits: local.Limits{CPU: s.spec.CPULimit, Memory: s.spec.MemoryLimit}, Busy: s.busy, GivenUp: s.givenUp,
	}
	if st.Running {
		p.Since = st.StartedAt
	}
	p.NextAction, p.NextAt = s.next(st)
	return p
}

// next returns the engine's next automatic action and its time; zero = not known.
func (s *snapshot) next(st *agentproto.Status) (action string, at time.Time) {
	switch {
	case s.quarantined:
		return local.NextQuarantined, time.Time{}
	case s.busy != "":
		return local.NextFinish, time.Time{}
	case !s.supervised():
		return local.NextNothing, time.Time{}
	case !s.settled:
		return local.NextSearch, time.Time{}
	case !st.FrozenUntil.IsZero():
		return local.NextFrozen, st.FrozenUntil
	case s.paused:
		return local.NextUnconfirmed, time.Time{}
	case !st.NextRunAt.IsZero():
		return local.NextRun, st.NextRunAt
	case st.Running:
		return local.NextWatch, time.Time{}
	case !st.NextRetryAt.IsZero():
		return local.NextStart, st.NextRetryAt
	case s.phase == supervise.Fatal:
		return local.NextAdopt, time.Time{}
	default:
		return local.NextSearch, time.Time{}
	}
}
