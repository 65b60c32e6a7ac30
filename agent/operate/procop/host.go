package procop

import (
	"context"
	"sync"
	"time"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

// Points of [Engine.Crash].
const (
	CrashBeforeExec = "agent.before-exec" // the execution is persisted, nothing is spawned
	CrashAfterSpawn = "agent.after-spawn" // the command runs, its identity is not persisted
)

// Host holds the dependencies that all work on the processes of one host shares.
type Host struct {
	BootID   string
	Instance string // distinguishes this agent from others on the same machine; "" = no others
	Finder   *proc.Finder
	Runner   *proc.Runner
	Claims   *Claims
	Groups   Groups
	Outputs  *Outputs
	Commands Slots // bounds concurrent commands
	Searches Slots // bounds concurrent searches of the host
	Timing   Timing
	Engine   Engine
}

// Engine holds the callbacks by which work uses its engine. All fields are required and must be
// safe for concurrent use.
type Engine struct {
	// Execute persists that an operation is about to act on the host, and later which
	// command it spawned.
	Execute func(id journal.ID, e journal.Exec) error

	// InTime reports whether the server's time is still before a deadline.
	InTime func(deadline time.Time) bool

	// DelayStarts delays automatic starts because the host could not spawn another process.
	DelayStarts func(reason string)

	// Supervised returns the pid file of a key's spec, and reports whether its process is
	// kept alive.
	Supervised func(key string) (pidPath string, supervised bool)

	// HasPidFile reports whether a pid file is that of a key whose process is kept alive, runs
	// or is being started.
	HasPidFile func(key, path string) bool

	// Crash is called at named points; tests kill the agent there.
	Crash func(point string)
}

// Timing holds the intervals and timeouts of work. All fields are required; the defaults are
// those of the engine.
type Timing struct {
	StopPoll        time.Duration // longest pause between queries of a process that should end, doubling from 5 ms; default 200 ms
	WindowPoll      time.Duration // pause between queries of a process that should start; default 250 ms
	Settle          time.Duration // time for which a started process must keep its identity, or in which a successor or pid file must appear; default 1 s
	ForegroundAfter time.Duration // least run time of a start command that is accepted as the process itself; default 5 s
	BlockedWait     time.Duration // time after the start window in which a process is searched whose pid file could not be read; default 15 s
	KillWait        time.Duration // time in which a killed process must end; default 5 s
	ReloadWait      time.Duration // longest wait between a reload and the query of the process; default 2 s
	KillGrace       time.Duration // time between SIGTERM and SIGKILL for a command that timed out; default 3 s
	TerminateGrace  time.Duration // time between SIGTERM and SIGKILL for a terminated process; default 10 s
}

// Knowledge is the engine's knowledge of a process when it begins work on it.
type Knowledge struct {
	Main      proc.Identity   // last verified process; zero = none
	Last      proc.Identity   // process before Main; zero = none
	Instances []proc.Identity // all instances including Main, if the spec has several
	Aliases   []string        // executable names under which the program was found
	Watched   bool            // Main is watched, and its end was not reported yet

	// AliveAt is when Main, or without it Last, was last observed running, in clock ticks
	// since boot; 0 = never by this agent process. A process that already ran then is not
	// its successor.
	AliveAt uint64
}

// Mark returns the environment mark that commands of a spec carry on this host.
func (h *Host) Mark(s *agentproto.Spec) string { return procspec.Mark(s, h.Instance) }

// Late reports whether an operation's deadline has passed.
func (h *Host) Late(op *journal.Op) bool {
	return !op.NotAfter.IsZero() && !h.Engine.InTime(op.NotAfter)
}

// work is one piece of work on a process. Only the goroutine that runs it uses it.
type work struct {
	target

	op journal.Op // for automatic starts and terminations, only Action and Spec are set

	// record persists the execution that is about to begin; nil = nothing is persisted.
	record func(journal.Exec) error

	staleLeft bool // a stale pid file existed before the command and was not moved aside

	starting  bool     // the command starts the process: its output is that of the process
	acted     bool     // the work has run a command or sent a signal
	ending    bool     // the command should end the process: none of its children may outlive it
	replacing bool     // the process of another spec was stopped
	command   *command // latest command; nil = none
	warnings  []string
	evidence  []string // observations in addition to those of the latest search
}

func (h *Host) work(op journal.Op, known Knowledge) *work {
	w := &work{op: op}
	w.target = target{host: h, spec: &w.op.Spec, known: known}
	return w
}

// Slots is a semaphore: its capacity bounds the concurrent users.
type Slots chan struct{}

// Acquire waits for a free slot; it reports false if ctx ended first.
func (s Slots) Acquire(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case s <- struct{}{}:
		return true
	}
}

// Release frees a slot.
func (s Slots) Release() { <-s }

// Groups is the set of the process groups of running commands. Members of these groups are
// not managed processes. The zero value is an empty set.
type Groups struct{ pgids sync.Map }

// Add adds the group of a command. Call remove after the command has ended.
func (g *Groups) Add(pgid int) (remove func()) {
	g.pgids.Store(pgid, nil)
	return func() { g.pgids.Delete(pgid) }
}

func (g *Groups) has(pgid int) bool {
	_, found := g.pgids.Load(pgid)
	return found
}

// excluding returns a matcher of the members of all groups except own: the command of own
// may itself be the process that it starts.
func (g *Groups) excluding(own int) func(proc.Process) bool {
	return func(p proc.Process) bool { return p.PGID != own && g.has(p.PGID) }
}

// pause waits for d; it reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
