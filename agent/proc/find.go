package proc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Finder finds the processes of targets. It is safe for concurrent use.
type Finder struct {
	// Managed returns the pids of the processes that the agent manages, over all targets.
	// To save time, a search reads executable and working directory of these processes only
	// if [Target.Claimed] does not report them as another target's. Set Managed before the
	// first Find. Default: no pids.
	Managed func() map[int]bool

	accounts *Accounts
	watchdog *watchdog
	located  *shared[[]located]
	marks    *shared[marks]
}

// NewFinder returns a finder that looks up users in accounts.
func NewFinder(accounts *Accounts) *Finder {
	f := &Finder{
		Managed:  func() map[int]bool { return nil },
		accounts: accounts, watchdog: newWatchdog(), marks: &shared[marks]{read: readMarks},
	}
	f.located = &shared[[]located]{read: func() ([]located, error) { return readLocated(f.Managed()) }}
	return f
}

// Find returns the running processes of a target. It checks the known identity, then the
// pid file, then all processes of the host by executable and setup path. For a target with
// neither setup path nor pid file, it checks the processes that the target's commands have
// started instead. Concurrent calls share the search. It blocks for at most about 2 s if
// the pid file is on a hanging file system, plus 5 s for the first lookup of an account.
func (f *Finder) Find(ctx context.Context, t Target) Probe {
	s := &search{target: t, located: f.located, marks: f.marks, uid: -1}
	var err error
	if s.boot, err = bootID(); err != nil {
		return Probe{Verdict: Uncertain, Evidence: err.Error()}
	}
	switch p, err := s.probeKnown(t.Known); {
	case err == nil && t.Instances > 1:
	case err == nil:
		return Probe{Verdict: Running, Procs: []Process{p}, Evidence: fmt.Sprintf("known process pid %d still runs", p.PID)}
	case !errors.Is(err, ErrGone):
		return Probe{Verdict: Uncertain, Evidence: fmt.Sprintf("known process pid %d: %v", t.Known.PID, err)}
	}
	if t.SetupPath == "" && t.PidPath == "" {
		return s.probeStarted()
	}
	if t.Account != "" {
		// If the account cannot be looked up, users are not compared.
		if account, err := f.accounts.Lookup(ctx, t.Account); err == nil {
			s.uid = uidOf(account)
		}
	}
	s.files, err = guard(ctx, f.watchdog, fileTimeout, t.SetupPath+"\x00"+t.PidPath, func() files {
		return readFiles(t.SetupPath, t.PidPath)
	})
	if err != nil {
		s.files = files{setup: filepath.Clean(t.SetupPath), err: err}
	}
	var probe Probe
	if t.Instances > 1 {
		probe = s.probeInstances()
	} else {
		probe = s.probe()
	}
	probe.Blocked = probe.Verdict == Uncertain && errors.Is(s.files.err, errFileBlocked)
	return probe
}

// search is the state of one Find.
type search struct {
	target        Target
	located       *shared[[]located]
	marks         *shared[marks]
	boot          string
	uid           int // user id of the target's account; -1 = any
	files         files
	agentAncestry map[int]bool // pids of the agent and its ancestors
}

// probeKnown reads only the stat of a process found earlier: callers do not need its
// paths.
func (s *search) probeKnown(id Identity) (Process, error) {
	st, err := statOf(id)
	return processOf(s.boot, st), err
}

// inspectKnown reads all attributes of an identified process.
func (s *search) inspectKnown(id Identity) (Process, error) {
	st, err := statOf(id)
	if err != nil {
		return Process{}, err
	}
	return inspect(s.boot, st)
}

// inspectPid reads all attributes of the process with a pid, and its name in the kernel. It
// returns ErrGone for zombies and kernel threads.
func (s *search) inspectPid(pid int) (p Process, comm string, err error) {
	st, err := ReadStat(pid)
	if err == nil && (dead(st.State) || st.Kernel) {
		err = ErrGone
	}
	if err != nil {
		return Process{}, "", err
	}
	p, err = inspect(s.boot, st)
	return p, st.Comm, err
}

func (s *search) probe() Probe {
	s.agentAncestry = agentAncestry()
	var named judgement
	if s.files.pid != 0 {
		named = s.judgePid(s.files.pid)
		if named.verdict != Stopped {
			return named.probe(s.target.PidPath, s.files.written)
		}
	} else if s.target.PidPath != "" {
		named.reason = fmt.Sprintf("no usable pid file %s: %v", s.target.PidPath, s.files.err)
	}
	return s.discover(named)
}

// probeStarted searches the processes that the target's commands have started.
func (s *search) probeStarted() Probe {
	marked, err := s.marks.get()
	if err != nil {
		return Probe{Verdict: Uncertain, Evidence: err.Error()}
	}
	s.agentAncestry = agentAncestry()
	var found []Process
	for _, st := range append(marked.carrying(s.target.Mark), marked.table.session(s.target.Command)...) {
		p, err := s.inspectKnown(Identity{BootID: s.boot, PID: st.PID, Start: st.Start})
		if exhausted(err) {
			return Probe{Verdict: Uncertain, Evidence: fmt.Sprintf("read pid %d: %v", st.PID, err)}
		}
		if err != nil || s.agentAncestry[st.PID] || !matchesName(p, st.Comm, s.names()) || s.excluded(p) || s.foreign(p) {
			continue
		}
		if s.hidesArgs(p) {
			return Probe{Verdict: Uncertain, Evidence: fmt.Sprintf("pid %d was started for this key, and its command line cannot be read", st.PID)}
		}
		if s.argsMatch(p) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return Probe{Verdict: Stopped, Evidence: s.notFoundReason()}
	}
	slices.SortFunc(found, mainFirst)
	found = slices.CompactFunc(found, func(a, b Process) bool { return a.Identity == b.Identity })
	return Probe{
		Verdict: Running, Procs: found, Searched: true, Marked: true,
		Evidence: fmt.Sprintf("found pid %d (%s), which a command of this key started", found[0].PID, found[0].Exe),
	}
}

// notFoundReason returns the evidence of a probeStarted without a match.
func (s *search) notFoundReason() string {
	var gone string
	if !s.target.Known.IsZero() {
		gone = "the known process is gone"
	}
	return joinReasons(gone, "the target has neither setup path nor pid file, and no process that was started for this key is called "+s.description())
}

func joinReasons(reasons ...string) string {
	return strings.Join(slices.DeleteFunc(reasons, func(r string) bool { return r == "" }), "; ")
}

// probeInstances finds the processes of a target with several instances: the known
// identities and the pids of the pid file. If none of these processes runs, it searches as
// for a target with one process.
func (s *search) probeInstances() Probe {
	s.agentAncestry = agentAncestry()
	probe := Probe{Verdict: Running}
	for _, id := range append([]Identity{s.target.Known}, s.target.Mates...) {
		switch p, err := s.probeKnown(id); {
		case err == nil:
			probe.add(p)
		case !errors.Is(err, ErrGone):
			return Probe{Verdict: Uncertain, Evidence: fmt.Sprintf("known process pid %d: %v", id.PID, err)}
		}
	}
	var uncertain string
	for _, pid := range s.files.pids {
		switch j := s.judgePid(pid); j.verdict {
		case Running:
			probe.add(j.process)
			probe.UsedPidFile = true
			if j.alias != "" {
				probe.Alias = j.alias
			}
		case Uncertain:
			uncertain = j.reason
		case Stopped:
		}
	}
	if len(probe.Procs) == 0 {
		if uncertain != "" {
			return Probe{Verdict: Uncertain, Evidence: uncertain}
		}
		return s.probe()
	}
	probe.Evidence = joinReasons(fmt.Sprintf("%d of %d instances run", len(probe.Procs), s.target.Instances), uncertain)
	return probe
}

func (p *Probe) add(process Process) {
	if !slices.ContainsFunc(p.Procs, func(has Process) bool { return has.Identity == process.Identity }) {
		p.Procs = append(p.Procs, process)
	}
}
