package proc

import (
	"regexp"
	"time"
)

// Verdict is the conclusion of a probe.
type Verdict int

const (
	// Uncertain is indeterminate: the host could not be read (permissions, a hanging file
	// system) or the evidence is contradictory. Callers must neither signal nor start a
	// process.
	Uncertain Verdict = iota
	Stopped           // no process of the target runs
	Running           // Probe.Procs are the target's processes
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

// Target describes the processes that Find searches.
//
// A name alone is no proof. If SetupPath and PidPath are both empty, Find accepts only
// Known, and processes of that name that a command of this target started according to Mark
// or Command.
type Target struct {
	ProcName  string
	SetupPath string // absolute directory; "" = none
	PidPath   string // absolute file; "" = none
	Account   string // only processes of this user are searched; "" = any

	// Args must match the command line, that is the arguments joined by single spaces;
	// nil = any. The first 32 KiB of a command line are compared, on Windows 64 KiB.
	// Args is not checked again for Known, since a program may change its command line.
	Args *regexp.Regexp

	// Known is the identity found earlier. While that process runs, Find returns it.
	Known Identity

	// Instances is the number of processes of the program, if more than one. The pid file
	// then has one pid per line, and Find returns all running processes of the pid file,
	// Known and Mates. Mates are further identities found earlier.
	Instances int
	Mates     []Identity

	// StartedAfter and PidFileAfter are the times of the start command that has just run.
	// Find accepts a process of any name if the process is not older than StartedAfter
	// ([NowTicks] before the command) and the pid file that names it is not older than
	// PidFileAfter. Both zero = no command has run.
	StartedAfter uint64
	PidFileAfter time.Time

	// Aliases are further executable names, from Probe.Alias.
	Aliases []string

	// Exclude reports processes that are never the target's, such as the agent's own
	// running commands. nil = none.
	Exclude func(Process) bool

	// Holder returns the key of another target to which a process belongs; "" = none. A pid
	// file that names such a process is stale. nil = no process belongs to another target.
	Holder func(Process) string

	// Mark is the value of KeyMark in the environment of processes that the target's
	// commands start; "" = none. The search prefers marked processes.
	Mark string

	// Command is the leader of the command that has just run; zero = none. Processes of its
	// session count as started by the command, even without the mark. Command is used only
	// if SetupPath and PidPath are both empty.
	Command Identity

	// Claimed reports pids of [Finder.Managed] that belong to other targets. Foreign must
	// report them as well. nil = none.
	Claimed func(pid int) bool

	// Foreign reports processes that belong to another target; mark is the value of their
	// KeyMark. The search excludes them and their children of the same name; the pid file
	// may name them. nil = none.
	Foreign func(p Process, mark string) bool
}

// Probe is the result of one observation of a target.
type Probe struct {
	Verdict Verdict
	// Procs are the running processes, the main process first; at least one if Running.
	// Processes of Target.Known and Mates have no user, paths and arguments.
	Procs    []Process
	Evidence string // one line for people: what was observed, why it was accepted or rejected

	// Alias is the executable name of a process that was accepted only because the
	// start command had just run. Add it to Target.Aliases.
	Alias string

	// UsedPidFile is true if the pid file named the process. Otherwise a running process
	// was found by the known identity or the search.
	UsedPidFile bool
	// PidFileWritten is the modification time of the pid file; zero unless UsedPidFile.
	PidFileWritten time.Time

	// Searched is true if the process was found by name, path and user only. That is enough
	// evidence not to start another process, but not enough to signal the found process if
	// the target has a pid file.
	Searched bool

	// Marked is true if a process found by the search has Target.Mark or is in the
	// session of Target.Command: a command of this target started it.
	Marked bool

	// Blocked is true if the verdict is Uncertain because the file system of the pid file did
	// not respond in time. The host may only be busy, so a later search may find out more.
	Blocked bool

	// StalePidFile is true if the pid file is readable and names no process of this
	// target. See [MoveDeadPidFile].
	StalePidFile bool
}
