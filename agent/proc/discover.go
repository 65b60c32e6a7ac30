package proc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
)

// located is one process with the paths by which a search finds it. What it is
// besides is read of those alone whose paths are right.
type located struct {
	pid      int
	exe, cwd string // "" when unreadable
	hidden   bool   // neither may be read
	managed  bool   // see Finder.Managed: the paths were not read
}

// searchPause is the number of processes after which a reading of the host lets
// other goroutines run. One that makes system calls all the time is preempted
// every 10 ms only, and the death of another process should be known sooner.
const searchPause = 32

// readLocated reads what a search may find: no zombies, no kernel threads, not
// pid 1. It costs about 6 µs for each process of the host that is not managed.
func readLocated(managed map[int]bool) ([]located, error) {
	pids, err := readPIDs()
	if err != nil {
		return nil, err
	}
	rows := make([]located, 0, len(pids))
	for i, pid := range pids {
		if i%searchPause == 0 {
			runtime.Gosched()
		}
		if managed[pid] {
			rows = append(rows, located{pid: pid, managed: true})
			continue
		}
		row, err := locate(pid)
		if exhausted(err) {
			return nil, err
		}
		if err == nil && pid != 1 {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// locate reads the paths of one process. Zombies and kernel threads, which have
// no executable, count as gone.
func locate(pid int) (located, error) {
	exe, exeErr := exePath(pid)
	if errors.Is(exeErr, ErrGone) {
		return located{}, ErrGone
	}
	cwd, cwdErr := workDir(pid)
	if err := errors.Join(exeErr, cwdErr); exhausted(err) {
		return located{}, fmt.Errorf("read the paths of pid %d: %w", pid, err)
	}
	hidden := errors.Is(exeErr, os.ErrPermission) && errors.Is(cwdErr, os.ErrPermission)
	return located{pid: pid, exe: exe, cwd: cwd, hidden: hidden}, nil
}

// discover searches the host. It never matches on a bare name: executable or
// working directory must lie under the setup path, and the user must be right.
func (s *search) discover(named judgement) Probe {
	found, unreadable, err := s.candidates()
	found, marked := s.own(found)
	if err != nil {
		return Probe{Verdict: Uncertain, Evidence: err.Error()}
	}
	probe := Probe{Verdict: Stopped, Evidence: named.reason, StalePidFile: s.files.pid != 0}
	switch {
	case len(found) > 0:
		probe.Verdict, probe.Procs, probe.Searched, probe.Marked = Running, found, true, marked
		probe.Evidence = joinReasons(named.reason, fmt.Sprintf("found pid %d (%s) by name and setup path", found[0].PID, found[0].Exe))
	case s.files.blocked():
		probe.Verdict = Uncertain
	case unreadable > 0:
		probe.Verdict = Uncertain
		probe.Evidence = joinReasons(named.reason, fmt.Sprintf("pid %d has the name and user, but its paths or its command line cannot be read", unreadable))
	case named.reason == "":
		probe.Evidence = fmt.Sprintf("no %s runs under %s", s.wanted(), s.files.setup)
	}
	return probe
}

// candidates returns the matching processes, parents before their children,
// and the pid of one that would match if its paths and command line were
// readable.
func (s *search) candidates() (found []Process, unreadable int, err error) {
	if s.files.setup == "" || s.target.ProcName == "" {
		return nil, 0, nil
	}
	rows, err := s.located.take()
	if err != nil {
		return nil, 0, err
	}
	taken := map[int]bool{}
	for _, row := range rows {
		if taken[row.pid] = row.managed && s.taken(row.pid); taken[row.pid] {
			continue
		}
		p, readable, err := s.candidate(row)
		switch {
		case exhausted(err):
			return nil, 0, err
		case err != nil: // most processes of a host end here
		case readable:
			found = append(found, p)
		case !s.foreign(p):
			unreadable = row.pid
		}
	}
	// A candidate's parent is needed to judge it, even if another key has the parent.
	for _, p := range found {
		if !taken[p.PPID] {
			continue
		}
		taken[p.PPID] = false
		parent, readable, err := s.candidate(located{pid: p.PPID, managed: true})
		switch {
		case exhausted(err):
			return nil, 0, err
		case err == nil && readable:
			found = append(found, parent)
		}
	}
	slices.SortFunc(found, mainFirst)
	return found, unreadable, nil
}

// errOther says that a process is not the target's.
var errOther = errors.New("it is another process")

// candidate returns the process of a row if it is the target's by its place, name,
// user and arguments. If these may not be read, it is not readable.
func (s *search) candidate(row located) (p Process, readable bool, err error) {
	if row.managed {
		if row, err = locate(row.pid); err != nil {
			return Process{}, false, err
		}
	}
	if s.mine[row.pid] || !row.hidden && !s.placed(row.exe, row.cwd) {
		return Process{}, false, errOther
	}
	p, comm, err := s.live(row.pid)
	if err != nil {
		return Process{}, false, fmt.Errorf("look at pid %d: %w", row.pid, err)
	}
	readable = !row.hidden && !s.silent(p)
	switch {
	case !row.hidden && !s.placed(p.Exe, p.Cwd): // the pid is another process's by now
	case !s.called(p, comm), s.uid >= 0 && p.UID != s.uid, s.excluded(p):
	case !s.silent(p) && !s.argsMatch(p):
	default:
		return p, readable, nil
	}
	return Process{}, false, errOther
}

// taken reports whether a pid is the process of another target.
func (s *search) taken(pid int) bool { return s.target.Taken != nil && s.target.Taken(pid) }

// called reports whether a process that was searched has the name. Where a pid
// file should have named it, the arguments of a script do not speak for it.
func (s *search) called(p Process, comm string) bool {
	if s.target.PidPath != "" {
		p = withoutArguments(p)
	}
	return matchesName(p, comm, s.names())
}

// own leaves out what is somebody else's, and returns only what carries the
// target's mark if anything does.
func (s *search) own(found []Process) (own []Process, marked bool) {
	foreign := map[int]bool{}
	for left := -1; left != len(found); {
		left = len(found)
		found = slices.DeleteFunc(found, func(p Process) bool {
			if s.foreign(p) || foreign[p.PPID] && !s.marked(p) {
				foreign[p.PID] = true
			}
			return foreign[p.PID]
		})
	}
	if slices.ContainsFunc(found, s.marked) {
		return slices.DeleteFunc(found, func(p Process) bool { return !s.marked(p) }), true
	}
	return found, false
}

func (s *search) foreign(p Process) bool {
	return s.target.Foreign != nil && s.target.Foreign(p, markOf(p.PID))
}

func (s *search) marked(p Process) bool {
	return s.target.Mark != "" && markOf(p.PID) == s.target.Mark
}

// placed reports whether the paths of a process lie where the target's do.
func (s *search) placed(exe, cwd string) bool { return under(exe, s.files.setup) || s.worksHere(cwd) }

// worksHere reports whether a working directory speaks for a process. Where a
// pid file should have named it, only the setup path itself does: below a
// setup path like /tmp anybody may work.
func (s *search) worksHere(cwd string) bool {
	if s.target.PidPath != "" {
		return samePath(cwd, s.files.setup)
	}
	return under(cwd, s.files.setup)
}

// mainFirst orders a parent before its children, and otherwise by start.
func mainFirst(a, b Process) int {
	switch {
	case a.PID == b.PPID:
		return -1
	case b.PID == a.PPID:
		return 1
	case a.Start != b.Start:
		if a.Start < b.Start {
			return -1
		}
		return 1
	}
	return a.PID - b.PID
}

// Strays returns the live processes that carry the mark of a scope and are not
// protected by it, wherever they hang in the process tree. A mark is evidence,
// not proof: a program may pass its environment on to something unrelated.
// Calls that happen together share one reading of the host.
func (f *Finder) Strays(scope KillScope) ([]Process, error) {
	marked, err := f.marks.take()
	if err != nil {
		return nil, err
	}
	stats := marked.byMark[scope.Key]
	if len(stats) == 0 {
		return nil, nil
	}
	spared := scope.spared(marked.table, 0)
	return marked.table.processes(slices.DeleteFunc(slices.Clone(stats), func(st Stat) bool { return spared[st.PID] })), nil
}

// marks are the live processes of the host by the mark that they carry.
type marks struct {
	table  *Table
	byMark map[string][]Stat
}

// of are the processes that carry a mark; nobody carries none.
func (m marks) of(mark string) []Stat {
	if mark == "" {
		return nil
	}
	return slices.Clone(m.byMark[mark])
}

func readMarks() (marks, error) {
	table, err := ReadTable()
	if err != nil {
		return marks{}, err
	}
	m := marks{table: table, byMark: map[string][]Stat{}}
	for _, st := range table.stats {
		if mark := markOf(st.PID); mark != "" && !dead(st.State) {
			m.byMark[mark] = append(m.byMark[mark], st)
		}
	}
	return m, nil
}
