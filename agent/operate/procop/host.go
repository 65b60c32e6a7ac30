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
	CrashBeforeExec = "agent.before-exec" // the execution is durable, nothing is spawned
	CrashAfterSpawn = "agent.after-spawn" // the command runs, its identity is not durable
)

// Host is what all work on the processes of one host shares.
type Host struct {
	BootID   string
	Instance string // distinguishes this agent from others on the same machine; "" = there is no other
	Finder   *proc.Finder
	Runner   *proc.Runner
	Claims   *Claims
	Groups   *Groups
	Outputs  *Outputs
	Commands Slots // commands that run at a time
	Searches Slots // searches of the host at a time
	Timing   Timing
	Engine   Engine
}

// Engine is what work needs of the engine that began it. All fields are required
// and safe for concurrent use.
type Engine struct {
	// Execute records durably that an operation is about to act on the host, and
	// later which command it spawned.
	Execute func(id journal.ID, e journal.Exec) error

	// InTime reports whether the server's time is still before a deadline.
	InTime func(deadline time.Time) bool

	// DelayStarts holds back automatic starts, because the host could not run
	// another process.
	DelayStarts func(reason string)

	// Supervised returns the pid file of a key's spec, and whether its process is
	// kept alive.
	Supervised func(key string) (pidPath string, supervised bool)

	// Crash is called at named points, for tests that kill the agent there.
	Crash func(point string)
}

// Timing holds the intervals and timeouts of work. All are required.
type Timing struct {
	StopPoll        time.Duration // longest pause between queries of a process that is to end
	WindowPoll      time.Duration // between queries of a process that is to start
	Settle          time.Duration // how long a started process must have kept its identity
	ForegroundAfter time.Duration // least run of a start command that is accepted as the process itself
	KillWait        time.Duration // how long a killed process may take to end
	ReloadWait      time.Duration // longest wait after a reload before the process is queried
	KillGrace       time.Duration // between SIGTERM and SIGKILL of a command that timed out
	TakeDownGrace   time.Duration // between SIGTERM and SIGKILL of a process that is terminated
}

// Knowledge is what the engine knows of a process when it begins work on it.
type Knowledge struct {
	Main      proc.Identity   // as last verified; zero = none
	Last      proc.Identity   // the process before Main
	Instances []proc.Identity // of a process with several instances: all of them, Main included
	Aliases   []string        // names under which the program was seen
	Watched   bool            // the end of Main is reported at once, and was not reported yet

	// AliveAt is when Main, or else Last, was seen running for the last time, in
	// clock ticks since boot; 0 = this agent process has not seen it run. A process
	// that already ran then is not its successor.
	AliveAt uint64
}

// Mark returns the mark that commands of a spec carry on this host.
func (h *Host) Mark(s *agentproto.Spec) string { return procspec.Mark(s, h.Instance) }

// Late reports whether an operation's deadline has passed.
func (h *Host) Late(op *journal.Op) bool {
	return !op.NotAfter.IsZero() && !h.Engine.InTime(op.NotAfter)
}

// work is one piece of work on a process. It belongs to the goroutine that runs it.
type work struct {
	target

	op journal.Op // of an automatic start or a termination: only Action and Spec

	// record makes durable what is about to be executed; nil = nothing is recorded.
	record func(journal.Exec) error

	acted    bool     // a command was run or a signal sent
	ending   bool     // the command is to end the process: nothing that it starts may outlive it
	command  *command // the latest one; nil = none
	warnings []string
	evidence []string // observations besides the latest search's
}

func (h *Host) work(op journal.Op, known Knowledge) *work {
	w := &work{op: op}
	w.target = target{host: h, spec: &w.op.Spec, known: known}
	return w
}

// Slots bounds how much runs at a time.
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

// Groups are the process groups of running commands. None of their members is a
// managed process.
type Groups struct {
	mu    sync.Mutex
	pgids map[int]bool
}

// NewGroups returns an empty set.
func NewGroups() *Groups { return &Groups{pgids: map[int]bool{}} }

// Add adds the group of a command. Call remove when the command has ended.
func (g *Groups) Add(pgid int) (remove func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pgids[pgid] = true
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.pgids, pgid)
	}
}

func (g *Groups) has(pgid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pgids[pgid]
}

// excluding matches the members of every group but own: a command that starts a
// process may be that process.
func (g *Groups) excluding(own int) func(proc.Process) bool {
	return func(p proc.Process) bool { return p.PGID != own && g.has(p.PGID) }
}

// pause waits; it reports false if ctx ended first.
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
