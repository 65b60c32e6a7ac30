package proc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Finder answers whether the process of a target runs. It is safe for
// concurrent use.
type Finder struct {
	// Managed returns the pids of the processes that targets have. Where the host
	// is searched, the paths of those that [Target.Taken] reports are not read.
	// Set it before the first Find; default: none.
	Managed func() map[int]bool

	accounts *Accounts
	watchdog *watchdog
	located  *shared[[]located]
	marks    *shared[marks]
}

// NewFinder returns a finder that resolves accounts through accounts.
func NewFinder(accounts *Accounts) *Finder {
	f := &Finder{
		Managed:  func() map[int]bool { return nil },
		accounts: accounts, watchdog: newWatchdog(), marks: &shared[marks]{read: readMarks},
	}
	f.located = &shared[[]located]{read: func() ([]located, error) { return readLocated(f.Managed()) }}
	return f
}

// Find looks for the target's process: the known identity first, then the
// process that the pid file names, then a search by executable and setup path
// or, with neither of these paths, among what the target's commands have
// started. Looks that happen together share the search.
// It returns within about 2 s even when the pid file lies on a file system that
// hangs, plus at most 5 s the first time an account must be asked from the
// network.
func (f *Finder) Find(ctx context.Context, t Target) Probe {
	s := &search{target: t, located: f.located, marks: f.marks, uid: -1}
	var err error
	if s.boot, err = bootID(); err != nil {
		return Probe{Verdict: Uncertain, Evidence: err.Error()}
	}
	switch p, err := s.still(t.Known); {
	case err == nil && t.Instances > 1:
	case err == nil:
		return Probe{Verdict: Running, Procs: []Process{p}, Evidence: fmt.Sprintf("known process pid %d still runs", p.PID)}
	case !errors.Is(err, ErrGone):
		return Probe{Verdict: Uncertain, Evidence: fmt.Sprintf("known process pid %d: %v", t.Known.PID, err)}
	}
	if t.SetupPath == "" && t.PidPath == "" {
		return s.started()
	}
	if t.Account != "" {
		// No process can belong to an account that does not exist; an account
		// that cannot be asked leaves the user out of the comparison.
		if account, err := f.accounts.Lookup(ctx, t.Account); err == nil {
			s.uid = uidOf(account)
		}
	}
	s.files, err = guard(ctx, f.watchdog, t.SetupPath+"\x00"+t.PidPath, func() files {
		return readFiles(t.SetupPath, t.PidPath)
	})
	if err != nil {
		s.files = files{setup: filepath.Clean(t.SetupPath), err: err}
	}
	if t.Instances > 1 {
		return s.several()
	}
	return s.probe()
}

// search is the state of one Find.
type search struct {
	target  Target
	located *shared[[]located]
	marks   *shared[marks]
	boot    string
	uid     int // of the account; -1 = any
	files   files
	mine    map[int]bool // the agent and its ancestors
}

// still reads one small file of a process that was found earlier: no caller asks
// for the paths of what is known.
func (s *search) still(id Identity) (Process, error) {
	st, err := statOf(id)
	return processOf(s.boot, st), err
}

// known reads everything of a process whose identity is known.
func (s *search) known(id Identity) (Process, error) {
	st, err := statOf(id)
	if err != nil {
		return Process{}, err
	}
	return look(s.boot, st)
}

// live looks at the process that has a pid, and returns the kernel's name of it
// as well. Zombies and kernel threads count as gone.
func (s *search) live(pid int) (p Process, comm string, err error) {
	st, err := readStat(pid)
	if err == nil && (dead(st.State) || st.Kernel) {
		err = ErrGone
	}
	if err != nil {
		return Process{}, "", err
	}
	p, err = look(s.boot, st)
	return p, st.Comm, err
}

func (s *search) probe() Probe {
	s.mine = agentLine()
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

// started searches what the target's own commands have started.
func (s *search) started() Probe {
	marked, err := s.marks.take()
	if err != nil {
		return Probe{Verdict: Uncertain, Evidence: err.Error()}
	}
	s.mine = agentLine()
	var found []Process
	for _, st := range append(marked.of(s.target.Mark), marked.table.session(s.target.Command)...) {
		p, err := s.known(Identity{BootID: s.boot, PID: st.PID, Start: st.Start})
		if exhausted(err) {
			return Probe{Verdict: Uncertain, Evidence: fmt.Sprintf("look at pid %d: %v", st.PID, err)}
		}
		if err != nil || s.mine[st.PID] || !matchesName(p, st.Comm, s.names()) || s.excluded(p) || s.foreign(p) {
			continue
		}
		if s.silent(p) {
			return Probe{Verdict: Uncertain, Evidence: fmt.Sprintf("pid %d was started for this key, and its command line cannot be read", st.PID)}
		}
		if s.argsMatch(p) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return Probe{Verdict: Stopped, Evidence: s.untraced()}
	}
	slices.SortFunc(found, mainFirst)
	found = slices.CompactFunc(found, func(a, b Process) bool { return a.Identity == b.Identity })
	return Probe{
		Verdict: Running, Procs: found, Searched: true, Marked: true,
		Evidence: fmt.Sprintf("found pid %d (%s), which a command of this key started", found[0].PID, found[0].Exe),
	}
}

// untraced says why nothing was found without a place to look at.
func (s *search) untraced() string {
	var gone string
	if !s.target.Known.IsZero() {
		gone = "the known process is gone"
	}
	return joinReasons(gone, "neither setup path nor pid file tell where to look, and nothing runs that was started for this key and is called "+s.wanted())
}

func joinReasons(reasons ...string) string {
	return strings.Join(slices.DeleteFunc(reasons, func(r string) bool { return r == "" }), "; ")
}

// several looks for all processes of a program that has more than one: those
// that were found earlier, and what the lines of the pid file name. Without any
// it goes on as for one process.
func (s *search) several() Probe {
	s.mine = agentLine()
	probe := Probe{Verdict: Running}
	for _, id := range append([]Identity{s.target.Known}, s.target.Mates...) {
		switch p, err := s.still(id); {
		case err == nil:
			probe.add(p)
		case !errors.Is(err, ErrGone):
			return Probe{Verdict: Uncertain, Evidence: fmt.Sprintf("known process pid %d: %v", id.PID, err)}
		}
	}
	var doubt string
	for _, pid := range s.files.pids {
		switch j := s.judgePid(pid); j.verdict {
		case Running:
			probe.add(j.process)
			probe.UsedPidFile = true
			if j.alias != "" {
				probe.Alias = j.alias
			}
		case Uncertain:
			doubt = j.reason
		case Stopped:
		}
	}
	if len(probe.Procs) == 0 {
		if doubt != "" {
			return Probe{Verdict: Uncertain, Evidence: doubt}
		}
		return s.probe()
	}
	probe.Evidence = joinReasons(fmt.Sprintf("%d of %d instances run", len(probe.Procs), s.target.Instances), doubt)
	return probe
}

// add takes in a process once.
func (p *Probe) add(process Process) {
	if !slices.ContainsFunc(p.Procs, func(has Process) bool { return has.Identity == process.Identity }) {
		p.Procs = append(p.Procs, process)
	}
}
