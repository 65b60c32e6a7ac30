package proc

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// argsMatch reports whether the command line of a process matches Target.Args.
func (s *search) argsMatch(p Process) bool {
	return s.target.Args == nil || s.target.Args.MatchString(strings.Join(p.Args, " "))
}

// hidesArgs reports whether the command line of a running process is unreadable although
// the target compares it. An ending process has neither command line nor executable; for
// such a process it returns false.
func (s *search) hidesArgs(p Process) bool {
	if len(p.Args) > 0 || s.argsMatch(p) {
		return false
	}
	_, err := exePath(p.PID)
	return !errors.Is(err, ErrGone)
}

// judgeNamesake judges a process in the pid file that has the target's name but another
// command line.
func (s *search) judgeNamesake(p Process, stale func(string, ...any) judgement) judgement {
	switch {
	case s.startedByUs(p):
		return judgement{verdict: Running, process: p, reason: "the start command started it, though its command line does not match " + s.target.Args.String()}
	case s.hidesArgs(p):
		return judgement{reason: fmt.Sprintf("pid file %s names pid %d (%s), whose command line %s cannot read",
			s.target.PidPath, p.PID, s.target.ProcName, whoami())}
	}
	return stale("is %s (%s), not %s", p.Name, strings.Join(p.Args, " "), s.description())
}

func (s *search) description() string {
	if s.target.Args == nil {
		return s.target.ProcName
	}
	return fmt.Sprintf("%s with a command line that matches %s", s.target.ProcName, s.target.Args)
}

// judgement is the conclusion about one pid.
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

// judgePid judges whether the pid in the pid file is the target's process.
func (s *search) judgePid(pid int) judgement {
	stale := func(format string, args ...any) judgement {
		return judgement{verdict: Stopped, reason: fmt.Sprintf("stale pid file %s: pid %d ", s.target.PidPath, pid) +
			fmt.Sprintf(format, args...)}
	}
	if s.agentAncestry[pid] {
		return stale("is the agent or an ancestor of it")
	}
	st, err := ReadStat(pid)
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
	p, err := inspect(s.boot, st)
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

// asUser returns " as uid N" for messages; "" if the user is unknown.
func asUser(uid int) string {
	if uid < 0 {
		return ""
	}
	return fmt.Sprintf(" as uid %d", uid)
}

// whoami returns the agent's user for messages.
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
		return judgement{reason: fmt.Sprintf("pid file %s names pid %d, a %s that runs %s in %s%s: it may or may not be the target's",
			s.target.PidPath, p.PID, s.target.ProcName, p.Exe, p.Cwd, asUser(p.UID))}
	}
	return running("name matches")
}

// judgeStranger judges a process in the pid file that has another name.
func (s *search) judgeStranger(p Process, comm string, stale func(string, ...any) judgement) judgement {
	if s.startedByUs(p) {
		return judgement{verdict: Running, process: p, alias: p.Name, reason: "the start command started it, and it calls itself " + p.Name}
	}
	// Without the executable only the kernel's name was compared. The agent can read all
	// processes of its own user, so this process belongs to another user. It can be the
	// target's process only if that user is the target's account.
	if p.Exe == "" && (s.uid < 0 || p.UID == s.uid) {
		return judgement{reason: fmt.Sprintf("pid file %s names pid %d (%s), whose executable %s may not read",
			s.target.PidPath, p.PID, comm, whoami())}
	}
	return stale("is %s (%s), not %s", p.Name, strings.Join(p.Args, " "), s.target.ProcName)
}

func (s *search) names() []string { return append([]string{s.target.ProcName}, s.target.Aliases...) }

// clockSlack is the maximum delay of file times relative to the clock: file systems round
// them down by up to 2 s.
const clockSlack = 2 * time.Second

// startedByUs reports whether process and pid file are not older than the start command,
// and whether the account may switch to the user of the process. Accounts can write pid
// files: without the comparison of users, an account could make the agent end a new process
// of another user.
func (s *search) startedByUs(p Process) bool {
	t := s.target
	if t.StartedAfter == 0 || t.PidFileAfter.IsZero() || s.uid > 0 && p.UID >= 0 && p.UID != s.uid {
		return false
	}
	return p.Start >= t.StartedAfter && !s.files.written.Before(t.PidFileAfter.Add(-clockSlack))
}

// olderThan reports whether the pid file was written before the process started, which means
// that the pid was reused. It compares wall clocks, so it is used only without better evidence.
func (s *search) olderThan(p Process) bool {
	started, err := startTime(p.Identity)
	return err == nil && s.files.written.Before(started.Add(-clockSlack))
}
