package proc

import (
	"errors"
	"fmt"
	"strings"
)

// argsMatch reports whether the command line of a process is the target's.
func (s *search) argsMatch(p Process) bool {
	return s.target.Args == nil || s.target.Args.MatchString(strings.Join(p.Args, " "))
}

// silent reports whether a process that runs shows no command line, though it
// takes one to tell whether it is the target's. One that is just ending has
// none either, and no executable any more.
func (s *search) silent(p Process) bool {
	if len(p.Args) > 0 || s.argsMatch(p) {
		return false
	}
	_, err := exePath(p.PID)
	return !errors.Is(err, ErrGone)
}

// judgeNamesake decides about a process of the target's name that the pid file
// names and whose command line is not the target's.
func (s *search) judgeNamesake(p Process, stale func(string, ...any) judgement) judgement {
	switch {
	case s.startedByUs(p):
		return judgement{verdict: Running, process: p, reason: "the start command started it, though its command line does not match " + s.target.Args.String()}
	case s.silent(p):
		return judgement{reason: fmt.Sprintf("pid file %s names pid %d (%s), whose command line %s cannot read",
			s.target.PidPath, p.PID, s.target.ProcName, whoami())}
	}
	return stale("is %s (%s), not %s", p.Name, strings.Join(p.Args, " "), s.wanted())
}

// wanted says in messages what is looked for.
func (s *search) wanted() string {
	if s.target.Args == nil {
		return s.target.ProcName
	}
	return fmt.Sprintf("%s with a command line that matches %s", s.target.ProcName, s.target.Args)
}
