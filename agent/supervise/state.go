package supervise

import (
	"cmp"
	"time"
)

// Desired is the state of the process that callers requested.
type Desired string

// The desired states.
const (
	None Desired = "none" // not supervised
	Up   Desired = "up"   // supervised
	Down Desired = "down" // stopped by an operation
)

// Phase is the state of the process; its values are shown to users.
type Phase string

// The phases.
const (
	Unknown    Phase = "unknown" // not searched for yet
	Stopped    Phase = "stopped"
	Starting   Phase = "starting"
	Running    Phase = "running"
	Stopping   Phase = "stopping"
	Restarting Phase = "restarting"
	Reloading  Phase = "reloading"
	Exited     Phase = "exited"     // process died; a search for a successor is in progress
	Backoff    Phase = "backoff"    // waiting for the next automatic start
	Fatal      Phase = "fatal"      // given up except for rare attempts; supervised again if another program starts it
	LimitKill  Phase = "limit_kill" // being terminated without an operation
	Uncertain  Phase = "uncertain"  // state indeterminate; the agent does not act
)

// Identity identifies one process across pid reuse and reboots; zero = no process.
type Identity struct {
	BootID string `json:"boot_id"`
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"`
}

// Moment is the time since this host booted, including suspension. It is invalid after the
// next boot.
type Moment time.Duration

// since returns the time from an earlier moment to t.
func (t Moment) since(earlier Moment) time.Duration { return time.Duration(t - earlier) }

// Action is the kind of an operation.
type Action string

// The actions that the machine orders. Status operations change nothing and bypass it.
const (
	Start     Action = "start"
	Stop      Action = "stop"
	Supervise Action = "supervise"
	Release   Action = "release"
	Restart   Action = "restart"
	Reload    Action = "reload"
	Kill      Action = "kill"
)

// Op is one submitted operation.
type Op struct {
	ID     string
	Action Action
	// Fence and Item order the operations of one process.
	Fence int64
	Item  int
	// Policy is derived from the operation's spec. It becomes the policy of the process if
	// the operation succeeds.
	Policy Policy
}

func (op Op) before(other Op) bool {
	return cmp.Or(cmp.Compare(op.Fence, other.Fence), cmp.Compare(op.Item, other.Item)) < 0
}

// Work is the kind of work in progress on a process.
type Work int

// The kinds of work.
const (
	Idle Work = iota
	Operating
	AutoStarting
	Terminating
)

// MaxQueue bounds the operations that wait on one process.
const MaxQueue = 32

// Saved is the part of a [State] that the next agent process needs.
type Saved struct {
	Desired  Desired  `json:"desired"`
	Phase    Phase    `json:"phase"`
	Main     Identity `json:"main,omitzero"`      // last verified process; zero = none
	Failures int      `json:"failures,omitempty"` // consecutive failed attempts to keep the process running
	Proven   bool     `json:"proven,omitempty"`   // Main has run for Policy.StableAfter
	Restarts int      `json:"restarts,omitempty"` // automatic starts since registration that ran a command
	// Since, the first observation of Main, and History are valid until the host reboots.
	Since   Moment  `json:"since,omitempty"`
	History History `json:"history,omitzero"`
}

// State is the state of one process. The zero State is that of an unknown process. States
// are values: [Step] never changes its argument.
type State struct {
	Saved

	Overlaps   int    // consecutive runs skipped because the previous run had not ended
	SpecStored bool   // a spec, and its Policy, are stored for the process
	Policy     Policy // derived from the stored spec

	Work  Work
	Op    Op   // operation in progress if Work == Operating; else the last one
	Queue []Op // waiting operations, in fence order

	// Gen is a generation number. Timers and searches carry the generation in which they
	// began and are ignored once it has changed: a late timer never acts on a state that it
	// was not armed for.
	Gen int

	Paused    bool     // automatic starts and terminations are suspended; see [Pause]
	Suspended bool     // a signal has stopped Main
	Conflict  Identity // living process that the pid file names instead of Main; zero = none

	before           Phase  // phase before the work began, restored if the work changed nothing
	indeterminate    int    // consecutive indeterminate searches
	recovering       bool   // no search was conclusive since the agent started
	notBefore        Moment // earliest automatic start after recovery
	overdue          bool   // an automatic start became due while paused and has not run yet
	terminating      Why    // reason of the termination if Work == Terminating
	conflictSince    Moment
	conflictReported bool
	nextNotice       Moment // earliest time of the next StillIndeterminate
}

// Settled reports whether a search was conclusive since the agent started, or the process
// is known to be [Uncertain].
func (s State) Settled() bool { return !s.recovering || s.Phase == Uncertain }

func (s State) supervised() bool { return s.Desired == Up }
