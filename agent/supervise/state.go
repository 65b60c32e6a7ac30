package supervise

import "time"

// Desired is what the process should be.
type Desired string

// The desired states.
const (
	None Desired = "none" // not supervised
	Up   Desired = "up"   // supervised
	Down Desired = "down" // stopped on purpose
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
	Exited     Phase = "exited"     // it died; a search for a successor runs
	Backoff    Phase = "backoff"    // waiting for the next automatic start
	Fatal      Phase = "fatal"      // given up except for rare attempts; followed again should it appear
	LimitKill  Phase = "limit_kill" // being terminated without an operation
	Uncertain  Phase = "uncertain"  // the state cannot be read; the agent does not act
)

// Identity names one process for ever; the zero value names none.
type Identity struct {
	BootID string
	PID    int
	Start  uint64
}

// Moment is a time of this host: the time since it booted, including suspension. It is
// invalid after the next boot.
type Moment time.Duration

// since returns the time from an earlier moment to t.
func (t Moment) since(earlier Moment) time.Duration { return time.Duration(t - earlier) }

// Action is what an operation does.
type Action string

// The actions that the machine puts in order. Status operations change nothing and bypass
// it.
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
	// Policy is that of the operation's spec. It becomes the process's when the operation
	// has succeeded.
	Policy Policy
}

// before reports whether op was submitted earlier than other.
func (op Op) before(other Op) bool {
	if op.Fence != other.Fence {
		return op.Fence < other.Fence
	}
	return op.Item < other.Item
}

// Work is the work on a process that is going on.
type Work int

// The kinds of work.
const (
	Idle Work = iota
	Operating
	AutoStarting
	Terminating
)

// MaxQueue bounds the operations that wait for their turn on one process.
const MaxQueue = 32

// State is the state of one process. The zero State is that of a process that is not
// known. States are values: [Step] never changes its argument.
type State struct {
	Desired  Desired
	Phase    Phase
	Main     Identity // the process as last verified; zero = none known
	Since    Moment   // since when it is known to be Main
	Failures int      // consecutive failed attempts to keep it up
	Proven   bool     // Main has run for Policy.StableAfter
	Restarts int      // automatic starts that ran a command since it was registered
	Overlaps int      // runs in a row that were skipped, since the previous one had not ended
	History  History
	Kept     bool   // Policy and a spec are kept for this process
	Policy   Policy // of the kept spec

	Work  Work
	Op    Op   // Work == Operating: the one that runs; else the last one
	Queue []Op // in fence order

	// Gen is a generation number. Timers and searches carry the number that was valid
	// when they began, and are ignored when it has changed: a timer that fires late
	// never acts on a state that it was not set for.
	Gen int

	Held      bool     // see [Hold]
	Suspended bool     // a signal has stopped Main
	Conflict  Identity // living process that the pid file names instead of Main; zero = none

	before           Phase  // phase when the work began, to return to if it did nothing
	indeterminate    int    // searches in a row that were indeterminate
	recovering       bool   // no search was conclusive since the agent started
	notBefore        Moment // of automatic starts
	overdue          bool   // a start became due while held, and nothing has happened since
	terminating      Why    // Work == TakingDown
	conflictSince    Moment
	conflictReported bool
	nextNotice       Moment // when StillIndeterminate may be emitted again
}

// Settled reports whether a search was conclusive since the agent started, or whether
// searches are known to be indeterminate.
func (s State) Settled() bool { return !s.recovering || s.Phase == Uncertain }

// supervised reports whether the process is kept alive.
func (s State) supervised() bool { return s.Desired == Up }
