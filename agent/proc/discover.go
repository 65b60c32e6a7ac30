package proc

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
)

// located is a process with its paths, by which a search selects processes. Other
// attributes are read for selected processes only.
type located struct {
	pid      int
	exe, cwd string // "" when unreadable
	hidden   bool   // exe and cwd are not readable for lack of permission
	managed  bool   // process of Finder.Managed, whose paths were not read
}

// searchPause is the number of processes after which a reading of the host yields to
// other goroutines. A goroutine in system calls is preempted only every 10 ms, which
// would delay the detection of ended processes.
const searchPause = 32

// readLocated reads the paths of all processes except zombies, kernel threads and pid 1. It
// takes about 6 µs per process of the host; managed processes are returned without paths,
// at no cost.
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

// locate reads the paths of one process. It returns ErrGone for zombies and kernel threads,
// which have no executable.
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

// discover searches the host for the target's processes. The name alone is never a match:
// executable or working directory must be below the setup path, and the user must match.
// named is the judgement of the pid file.
func (s *search) discover(named judgement) Probe {
	found, unreadable, err := s.candidates()
	found, marked := s.removeForeign(found)
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
		probe.Evidence = fmt.Sprintf("no %s runs under %s", s.description(), s.files.setup)
	}
	return probe
}

// candidates returns the matching processes, parents before their children, and the
// pid of a process that may match but whose paths or command line are unreadable.
func (s *search) candidates() (found []Process, unreadable int, err error) {
	if s.files.setup == "" || s.target.ProcName == "" {
		return nil, 0, nil
	}
	rows, err := s.located.get()
	if err != nil {
		return nil, 0, err
	}
	skipped := map[int]bool{}
	for _, row := range rows {
		if skipped[row.pid] = row.managed && s.claimedByOther(row.pid); skipped[row.pid] {
			continue
		}
		p, readable, err := s.candidate(row)
		switch {
		case exhausted(err):
			return nil, 0, err
		case err != nil: // most processes of a host do not match
		case readable:
			found = append(found, p)
		case !s.foreign(p):
			unreadable = row.pid
		}
	}
	// A candidate cannot be judged without its parent: read the parent even if it belongs
	// to another key.
	for _, p := range found {
		if !skipped[p.PPID] {
			continue
		}
		skipped[p.PPID] = false
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

// errNoMatch is returned for a process that is not the target's.
var errNoMatch = errors.New("it is another process")

// candidate returns the process of a row if it matches the target by path, name,
// user and arguments. readable is false if paths or arguments cannot be read.
func (s *search) candidate(row located) (p Process, readable bool, err error) {
	if row.managed {
		if row, err = locate(row.pid); err != nil {
			return Process{}, false, err
		}
	}
	if s.agentAncestry[row.pid] || !row.hidden && !s.placed(row.exe, row.cwd) {
		return Process{}, false, errNoMatch
	}
	p, comm, err := s.inspectPid(row.pid)
	if err != nil {
		return Process{}, false, fmt.Errorf("read pid %d: %w", row.pid, err)
	}
	readable = !row.hidden && !s.hidesArgs(p)
	switch {
	case !row.hidden && !s.placed(p.Exe, p.Cwd): // the pid was reused meanwhile
	case !s.hasName(p, comm), s.uid >= 0 && p.UID != s.uid, s.excluded(p):
	case !s.hidesArgs(p) && !s.argsMatch(p):
	default:
		return p, readable, nil
	}
	return Process{}, false, errNoMatch
}

func (s *search) claimedByOther(pid int) bool {
	return s.target.Claimed != nil && s.target.Claimed(pid)
}

// hasName reports whether a process found by the search has the target's name. If the
// target has a pid file, the arguments of a script are ignored.
func (s *search) hasName(p Process, comm string) bool {
	if s.target.PidPath != "" {
		p = withoutArguments(p)
	}
	return matchesName(p, comm, s.names())
}

// removeForeign removes the processes of other targets. If a remaining process has the
// target's mark, it also removes all unmarked processes and returns marked = true.
func (s *search) removeForeign(found []Process) (own []Process, marked bool) {
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

// placed reports whether executable or working directory of a process match the setup path.
func (s *search) placed(exe, cwd string) bool { return under(exe, s.files.setup) || s.worksHere(cwd) }

// worksHere reports whether a working directory matches the setup path. If the target has a
// pid file, it must equal the setup path: unrelated processes may work below a setup path
// like /tmp.
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
	}
	return cmp.Or(cmp.Compare(a.Start, b.Start), a.PID-b.PID)
}

// Orphans returns the live processes that have the mark scope.Key, wherever they are in the
// process tree, and that scope does not protect. The mark is evidence, not proof: a program may
// pass its environment to unrelated processes. Concurrent calls share one reading of the host.
func (f *Finder) Orphans(scope KillScope) ([]Process, error) {
	marked, err := f.marks.get()
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

// marks holds the live processes of the host by mark.
type marks struct {
	table  *Table
	byMark map[string][]Stat
}

// carrying returns the processes with the given mark; nil for "".
func (m marks) carrying(mark string) []Stat {
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
