package proc

import (
	"regexp"
	"time"
)

// Verdict is what a probe concluded.
type Verdict int

const (
	// Uncertain means that the truth could not be read (permissions, a hanging
	// file system) or contradicts itself. Callers neither signal nor start.
	Uncertain Verdict = iota
	// Stopped means that no process of the target runs.
	Stopped
	// Running means that Probe.Procs are the target's processes.
	Running
)

func (v Verdict) String() string {
	switch v {
	case Uncertain:
		return "uncertain"
	case Stopped:
		return "stopped"
	case Running:
		return "running"
	}
	return "invalid"
}

// Target describes the process to look for.
//
// With neither SetupPath nor PidPath a bare name proves nothing: only Known
// counts, and what has the name and was started by a command of this target,
// as Mark or Command tell. Everything else is Stopped.
type Target struct {
	ProcName  string
	SetupPath string // absolute directory; "" = none
	PidPath   string // absolute file; "" = none
	Account   string // only processes of this user are searched; "" = any

	// Args is what something in the command line, the arguments joined by single
	// spaces, must match beside the name; nil = anything does. At most 32 KiB of
	// a command line are looked at, 64 KiB on Windows. A program may change its
	// own: what was accepted once is not asked again.
	Args *regexp.Regexp

	// Known is the identity found earlier; while it lives, it is the answer.
	Known Identity

	// Instances is how many processes the program has, if several: then the pid
	// file names one in each line, and all that live are the answer, with those
	// of Mates, which were found earlier beside Known.
	Instances int
	Mates     []Identity

	// StartedAfter and PidFileAfter describe the start command that has just
	// run. A process that is not older than StartedAfter ([NowTicks] taken
	// before the command), named by a pid file that is not older than
	// PidFileAfter, is accepted under any name. Both zero = no such evidence.
	StartedAfter uint64
	PidFileAfter time.Time

	// Aliases are further executable names learnt from Probe.Alias.
	Aliases []string

	// Exclude reports processes that must never be taken for the target, such
	// as the agent's own running commands. nil = none.
	Exclude func(Process) bool

	// Holder returns the key that holds a process as its own, "" = none. A pid
	// file that names a process with a holder is stale. nil = no process has one.
	Holder func(Process) string

	// Mark is the value of KeyMark that the target's commands leave with what
	// they start; "" = none. The search prefers what carries it.
	Mark string

	// Command is the leader of the command that has just run; zero = none. What
	// is in its session descends from it, whatever became of its environment.
	// It counts with neither SetupPath nor PidPath only.
	Command Identity

	// Taken reports pids of [Finder.Managed] that are processes of other targets.
	// Foreign must report them as well. nil = none.
	Taken func(pid int) bool

	// Foreign reports processes known to be somebody else's, given the value of
	// their KeyMark. The search leaves them out with their children of the same
	// name; a pid file that names one is heard all the same. nil = none.
	Foreign func(p Process, mark string) bool
}

// Probe is the answer to one look at a target.
type Probe struct {
	Verdict  Verdict
	Procs    []Process // Running: at least one, the main process first; one that was known has no user, paths and arguments
	Evidence string    // one line for people: what was seen, why it was accepted or rejected

	// Alias is the executable name of a process that was accepted on the
	// evidence of the start command alone; keep it in Target.Aliases.
	Alias string

	// UsedPidFile says that the pid file named the process. False on Running
	// means that the known identity or the search found it.
	UsedPidFile bool
	// PidFileWritten is when the pid file that named the process was written;
	// zero unless UsedPidFile.
	PidFileWritten time.Time

	// Searched says that neither the known identity nor the pid file named the
	// process: it was found by its name, place and user. That is enough to
	// not start another one, and not enough to signal it where a pid file
	// should have named it.
	Searched bool

	// Marked says that what was searched carries Target.Mark, or is in the
	// session of Target.Command: besides having the name and place, if there is
	// one, it descends from a command of this target.
	Marked bool

	// StalePidFile says that the pid file is readable and names no process of
	// this target, so that it may be moved out of the way of a start.
	StalePidFile bool
}
