package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
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

// judgement is what looking at one pid gave.
type judgement struct {
	verdict Verdict
	process Process
	alias   string
	reason  string
}

func (j judgement) probe(pidPath string, written time.Time) Probe {
	p := Probe{Verdict: j.verdict, Evidence: j.reason, UsedPidFile: true, PidFileWritten: written, Alias: j.alias}
	if j.verdict == Running {
		p.Procs = []Process{j.process}
		p.Evidence = fmt.Sprintf("pid file %s names pid %d: %s", pidPath, j.process.PID, j.reason)
	}
	return p
}

// judgePid decides whether the pid from the pid file is the target's process.
func (s *search) judgePid(pid int) judgement {
	stale := func(format string, args ...any) judgement {
		return judgement{verdict: Stopped, reason: fmt.Sprintf("stale pid file %s: pid %d ", s.target.PidPath, pid) +
			fmt.Sprintf(format, args...)}
	}
	if s.mine[pid] {
		return stale("is the agent or an ancestor of it")
	}
	st, err := readStat(pid)
	switch {
	case errors.Is(err, ErrGone) && hiddenPid(pid):
		return judgement{reason: fmt.Sprintf("pid %d of pid file %s exists but is hidden from %s", pid, s.target.PidPath, whoami())}
	case errors.Is(err, ErrGone):
		return stale("does not exist")
	case err != nil:
		return judgement{reason: fmt.Sprintf("pid %d of pid file %s: %v", pid, s.target.PidPath, err)}
	case dead(st.State):
		return stale("is a zombie")
	case st.Kernel:
		return stale("is a kernel thread (%s)", st.Comm)
	}
	p, err := look(s.boot, st)
	switch {
	case errors.Is(err, ErrGone):
		return stale("has just ended")
	case exhausted(err):
		return judgement{reason: fmt.Sprintf("pid %d of pid file %s: %v", pid, s.target.PidPath, err)}
	case err != nil:
		return stale("is not a process: %v", err)
	}
	if s.excluded(p) {
		return stale("is a running command of the agent")
	}
	if s.target.Holder != nil {
		if key := s.target.Holder(p); key != "" {
			return stale("is the process of key %s", key)
		}
	}
	return s.judge(p, st.Comm, stale)
}

// asUser says who runs a process, if that has a number.
func asUser(uid int) string {
	if uid < 0 {
		return ""
	}
	return fmt.Sprintf(" as uid %d", uid)
}

// whoami says as whom the agent looks at processes.
func whoami() string {
	if uid := os.Geteuid(); uid >= 0 {
		return fmt.Sprintf("uid %d", uid)
	}
	return "the agent's account"
}

func (s *search) excluded(p Process) bool { return s.target.Exclude != nil && s.target.Exclude(p) }

func (s *search) judge(p Process, comm string, stale func(string, ...any) judgement) judgement {
	running := func(reason string) judgement { return judgement{verdict: Running, process: p, reason: reason} }
	if !matchesName(p, comm, s.names()) {
		return s.judgeStranger(p, comm, stale)
	}
	if !s.argsMatch(p) {
		return s.judgeNamesake(p, stale)
	}
	where := place(p, s.files.setup)
	uidMatches := s.uid < 0 || p.UID < 0 || p.UID == s.uid
	switch {
	case where == placeInside:
		return running("name and setup path match")
	case s.startedByUs(p):
		return running("name matches and it was started by the start command")
	case where == placeForeign:
		return stale("is another %s: it runs %s in %s%s", s.target.ProcName, p.Exe, p.Cwd, asUser(p.UID))
	case s.olderThan(p):
		return stale("is another %s: it started after the pid file was written", s.target.ProcName)
	case where == placeMixed, !uidMatches:
		return judgement{reason: fmt.Sprintf("pid file %s names pid %d, a %s that runs %s in %s%s: it may or may not be ours",
			s.target.PidPath, p.PID, s.target.ProcName, p.Exe, p.Cwd, asUser(p.UID))}
	}
	return running("name matches")
}

// judgeStranger decides about a process without a matching name.
func (s *search) judgeStranger(p Process, comm string, stale func(string, ...any) judgement) judgement {
	if s.startedByUs(p) {
		return judgement{verdict: Running, process: p, alias: p.Name, reason: "the start command started it, and it calls itself " + p.Name}
	}
	// Without its executable only the kernel's name was compared. A process of
	// our own user is always readable, so this is somebody else's unless the
	// account says otherwise.
	if p.Exe == "" && (s.uid < 0 || p.UID == s.uid) {
		return judgement{reason: fmt.Sprintf("pid file %s names pid %d (%s), whose executable %s may not read",
			s.target.PidPath, p.PID, comm, whoami())}
	}
	return stale("is %s (%s), not %s", p.Name, strings.Join(p.Args, " "), s.target.ProcName)
}

func (s *search) names() []string { return append([]string{s.target.ProcName}, s.target.Aliases...) }

// clockSlack is how far file times may lie behind the clock: file systems
// round down to as much as 2 s.
const clockSlack = 2 * time.Second

// startedByUs reports whether process and pid file are both not older than the
// start command, and the process is of a user that the account can become: an
// account may write a pid file, and must not have another user's process ended
// by naming one that has just begun.
func (s *search) startedByUs(p Process) bool {
	t := s.target
	if t.StartedAfter == 0 || t.PidFileAfter.IsZero() || s.uid > 0 && p.UID >= 0 && p.UID != s.uid {
		return false
	}
	return p.Start >= t.StartedAfter && !s.files.written.Before(t.PidFileAfter.Add(-clockSlack))
}

// olderThan reports whether the pid file was written before the process
// started, as is the case when the pid was reused. It compares wall clocks,
// so it only ever decides where nothing better does.
func (s *search) olderThan(p Process) bool {
	started, err := startTime(p.Identity)
	return err == nil && s.files.written.Before(started.Add(-clockSlack))
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

func joinReasons(reasons ...string) string {
	return strings.Join(slices.DeleteFunc(reasons, func(r string) bool { return r == "" }), "; ")
}
