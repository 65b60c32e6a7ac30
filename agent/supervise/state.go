package supervise

import "time"

// Desired is what the process should be.
type Desired string

// The desired states.
const (
	None Desired = "none" // not ours to keep alive
	Up   Desired = "up"   // supervised
	Down Desired = "down" // stopped on purpose
)

// Phase is where the process stands; the words are shown to users.
type Phase string

// The phases.
const (
	Unknown    Phase = "unknown" // nobody has looked yet
	Stopped    Phase = "stopped"
	Starting   Phase = "starting"
	Running    Phase = "running"
	Stopping   Phase = "stopping"
	Restarting Phase = "restarting"
	Reloading  Phase = "reloading"
	Exited     Phase = "exited"     // seen to die; a successor is being looked for
	Backoff    Phase = "backoff"    // waiting for the next automatic start
	Fatal      Phase = "fatal"      // given up but for rare attempts; adopted again should it appear
	LimitKill  Phase = "limit_kill" // being taken down though nobody asked for it
	Uncertain  Phase = "uncertain"  // the truth cannot be read; nothing is done
)

// Identity names one process for ever; the zero value names none.
type Identity struct {
	BootID string
	PID    int
	Start  uint64
}

// Moment is a time of this host: what has passed since it booted, the time it
// slept included. It means nothing after the next boot.
type Moment time.Duration

// since is what has passed from an earlier moment to t.
func (t Moment) since(earlier Moment) time.Duration { return time.Duration(t - earlier) }

// Action is what an operation does.
type Action string

// The actions that the machine puts in order. A status request changes
// nothing and never comes here.
const (
	Start     Action = "start"
	Stop      Action = "stop"
	Supervise Action = "supervise"
	Release   Action = "release"
	Restart   Action = "restart"
	Reload    Action = "reload"
	Kill      Action = "kill"
)

// Op is one operation that was asked for.
type Op struct {
	ID     string
	Action Action
	// Fence and Item order the operations of one process.
	Fence int64
	Item  int
	// Policy is what the operation's spec asks for; it becomes the process's
	// once the operation succeeded.
	Policy Policy
}

// before reports whether op was asked for earlier than other.
func (op Op) before(other Op) bool {
	if op.Fence != other.Fence {
		return op.Fence < other.Fence
	}
	return op.Item < other.Item
}

// Work is what a process's goroutine is busy with.
type Work int

// The kinds of work.
const (
	Idle Work = iota
	Operating
	AutoStarting
	TakingDown
)

// MaxQueue bounds the operations that wait for their turn on one process.
const MaxQueue = 32

// State is all that is decided about one process. The zero State is a process
// never heard of. States are values: [Step] never changes the one it is given.
type State struct {
	Desired  Desired
	Phase    Phase
	Main     Identity // the process as last verified; zero = none known
	Since    Moment   // since when it is known to be Main
	Failures int      // consecutive failed attempts to keep it up
	Proven   bool     // Main has run for Policy.StableAfter
	Restarts int      // automatic starts that ran a command since it was registered
	Overlaps int      // runs in a row that were left out, since the one before had not ended
	History  History
	Kept     bool   // Policy and a spec are kept for this process
	Policy   Policy // of the kept spec

	Work  Work
	Op    Op   // Work == Operating: the one under way; else the last one
	Queue []Op // in fence order

	// Gen counts situations. Timers and looks carry the number under which
	// they were asked for, and are ignored once it has moved on: a timer that
	// fires late can therefore never act on news it does not know.
	Gen int

	Held      bool     // see [Hold]
	Suspended bool     // Main was stopped by a signal
	Rival     Identity // living process that the pid file names instead of Main; zero = none

	before     Phase  // phase when the work began, to return to if it did nothing
	doubts     int    // looks in a row that could not tell
	recovering bool   // no look has been concluded since the agent started
	notBefore  Moment // of automatic starts
	overdue    bool   // a start became due while held, and nothing has happened since
	taking     Why    // Work == TakingDown
	rivalSince Moment
	rivalTold  bool
	nextDoubt  Moment // when doubt may be told again
}

// Settled reports that somebody has looked at the process since the agent
// started, or that looking does not tell.
func (s State) Settled() bool { return !s.recovering || s.Phase == Uncertain }

// supervised reports whether the process is kept alive.
func (s State) supervised() bool { return s.Desired == Up }
