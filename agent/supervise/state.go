package supervise

import "time"

// Desired is the desired state of the process; a stored word.
type Desired string

// The desired states.
const (
	None Desired = "none" // not supervised
	Up   Desired = "up"   // supervised
	Down Desired = "down" // stopped on purpose
)

// Phase is the present state of the process; the words are shown to users.
type Phase string

// The phases.
const (
	Unknown    Phase = "unknown" // not observed yet
	Stopped    Phase = "stopped"
	Starting   Phase = "starting"
	Running    Phase = "running"
	Stopping   Phase = "stopping"
	Restarting Phase = "restarting"
	Reloading  Phase = "reloading"
	Exited     Phase = "exited"     // the process ended; the observation for a successor is under way
	Backoff    Phase = "backoff"    // waiting for the next automatic start
	Fatal      Phase = "fatal"      // given up but for rare probes; supervised again after an external start
	LimitKill  Phase = "limit_kill" // being taken down without an operation
	Uncertain  Phase = "uncertain"  // observations are indeterminate; automatic actions are suspended
)

// Identity names one process uniquely; the zero value names none.
type Identity struct {
	BootID string
	PID    int
	Start  uint64
}

// Moment is the time since the boot of the host, suspended time included. It is
// meaningless after the next boot.
type Moment time.Duration

func (t Moment) since(earlier Moment) time.Duration { return time.Duration(t - earlier) }

// Action is the action of an operation.
type Action string

// The actions that the machine orders. A status request changes nothing and is
// not an operation here.
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
	// Policy is the policy of the operation's spec. It becomes the policy of the
	// process once the operation succeeded.
	Policy Policy
}

// before reports whether op was accepted earlier than other.
func (op Op) before(other Op) bool {
	if op.Fence != other.Fence {
		return op.Fence < other.Fence
	}
	return op.Item < other.Item
}

// Work is the piece of work that is under way for a process.
type Work int

// The kinds of work.
const (
	Idle Work = iota
	Operating
	AutoStarting
	TakingDown
)

// MaxQueue is the maximum number of operations queued for one process.
const MaxQueue = 32

// State is the state of one process. The zero State is an unknown process.
// States are values: [Step] returns a new one and never changes its argument.
type State struct {
	Desired  Desired
	Phase    Phase
	Main     Identity // the process as last verified; zero = none known
	Since    Moment   // when Main was first observed
	Failures int      // consecutive failed attempts to keep it up
	Proven   bool     // Main has run for Policy.StableAfter
	Restarts int      // automatic starts that ran a command since it was registered
	Overlaps int      // consecutive periodic runs skipped because the previous one had not ended
	History  History
	Kept     bool   // Policy and a spec are stored for this process
	Policy   Policy // of the stored spec

	Work  Work
	Op    Op   // Work == Operating: the one under way; else the last one
	Queue []Op // in fence order

	// Gen is the number of the present situation. Timers and observations carry
	// the number of the situation in which they were requested and are ignored in
	// a later one, so that a late timer never acts on a changed process.
	Gen int

	Held      bool     // see [Hold]
	Suspended bool     // Main was stopped by a signal
	Rival     Identity // live process that the pid file names instead of Main: a conflict; zero = none

	before           Phase  // phase when the work began, restored if the work had no effect
	indeterminate    int    // consecutive indeterminate observations
	recovering       bool   // no conclusive observation since the agent started
	notBefore        Moment // of automatic starts
	overdue          bool   // a start became due while held
	taking           Why    // Work == TakingDown
	conflictSince    Moment
	conflictReported bool
	nextUncertain    Moment // earliest time of the next Doubtful event
}

// Settled reports whether the process was observed since the agent started, be it
// in vain ([Uncertain]).
func (s State) Settled() bool { return !s.recovering || s.Phase == Uncertain }

func (s State) supervised() bool { return s.Desired == Up }
