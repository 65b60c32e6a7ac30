package supervise

import "time"

// Observation is the result of a search for the process.
type Observation int

// The observations.
const (
	Unseen        Observation = iota // it was not searched for
	Gone                             // it does not run
	Alive                            // it runs
	Indeterminate                    // the truth could not be read
)

// Event is something that happened to a process.
type Event interface{ event() }

// Submitted is an operation that a caller submitted.
type Submitted struct{ Op Op }

// Class is how a piece of work ended.
type Class int

// The classes.
const (
	Done        Class = iota // the goal is reached
	Already                  // it was reached before
	Failed                   // it was not reached
	Refused                  // nothing was tried
	Interrupted              // an automatic start yielded to an operation
)

// Fault is why a start could not be tried, if the process did not cause it.
type Fault int

// The faults.
const (
	NoFault  Fault = iota
	BadSetup       // the host is not set up for the process: its account, its folder, its program
	NoRoom         // the host cannot run another process now
)

// Outcome is the end of an operation, an automatic start or a termination.
type Outcome struct {
	Class       Class
	Fault       Fault // of a start that failed
	Observation Observation
	Main        Identity // Sight == Alive: the process
	// Other says that the operation's spec describes another program than the
	// kept one, so that the observation says nothing about the kept one.
	Other bool
}

// determinate reports whether the outcome says if the process runs.
func (o Outcome) determinate() bool { return o.Observation == Alive || o.Observation == Gone }

// Finished ends the operation with this ID.
type Finished struct {
	ID      string
	Outcome Outcome
}

// AutoStarted ends an automatic start.
type AutoStarted struct {
	Outcome Outcome
	Ran     bool // a start command was run
}

// Why is the reason to terminate a process without an operation.
type Why string

// The reasons.
const (
	OverLimit Why = "limit"
	Unhealthy Why = "health"
)

// TerminateRequested asks to terminate exactly this process. It has no effect unless
// the process is the one that runs, no work is going on and the process is not held:
// the sender repeats it as long as there is reason to.
type TerminateRequested struct {
	Main Identity
	Why  Why
}

// Terminated ends a termination.
type Terminated struct{ Outcome Outcome }

// Hold suspends automatic starts and terminations until the next Hold with On false.
// Operations are carried out nevertheless.
type Hold struct{ On bool }

// PidFileConflict says which other process the pid file names while Main lives. If
// Other is zero, it names Main again, or no process.
type PidFileConflict struct {
	Main, Other Identity
	// Kin says that Main is an ancestor or a sibling of Other: a program that
	// replaces itself.
	Kin bool
}

// Suspended says that a signal has stopped Main, or that Main continues.
type Suspended struct {
	Main Identity
	On   bool
}

// Observed is the result of a [Search].
type Observed struct {
	Gen         int
	Observation Observation
	Main        Identity
}

// Died says that a watched process ended.
type Died struct{ Main Identity }

// Swept is the regular reminder to check what no event reports.
type Swept struct{}

// Ticked says that the next run of a periodic process is due; see [State.Ticks].
type Ticked struct{}

// Fired is a timer of [Arm] that has expired.
type Fired struct {
	Timer Timer
	Gen   int
}

// Recovered is the first event of a state that an earlier agent process left.
type Recovered struct {
	// NotBefore is the earliest time of an automatic start.
	NotBefore Moment
}

func (Submitted) event()          {}
func (Finished) event()           {}
func (AutoStarted) event()        {}
func (TerminateRequested) event() {}
func (Terminated) event()         {}
func (Hold) event()               {}
func (PidFileConflict) event()    {}
func (Suspended) event()          {}
func (Observed) event()           {}
func (Died) event()               {}
func (Swept) event()              {}
func (Ticked) event()             {}
func (Fired) event()              {}
func (Recovered) event()          {}

// Timer is the purpose of a timer. A process has at most one: arming it replaces the
// previous one.
type Timer int

// The timers.
const (
	RetryTimer  Timer = iota // an automatic start is due; after giving up, one of the rare attempts
	StableTimer              // the process has proven itself
)

// Effect is something that the caller of [Step] must do.
type Effect interface{ effect() }

// Perform carries out an operation, which ends with [Finished].
type Perform struct {
	Op Op
	// Main is the process as known when the operation began.
	Main Identity
}

// Refuse ends an operation that never began.
type Refuse struct {
	ID  string
	Why Refusal
}

// Refusal is why an operation never begins.
type Refusal int

// The refusals.
const (
	QueueFull  Refusal = iota
	Superseded         // a later one has begun already
)

// End makes the result of an operation final and durable.
type End struct{ ID string }

// Keep makes the operation's spec the process's own.
type Keep struct{ ID string }

// Save makes the state durable.
type Save struct{}

// AutoStart starts the process if it does not run. It ends with [AutoStarted].
type AutoStart struct{}

// Terminate ends exactly this process by whatever means it takes. It ends with
// [Terminated].
type Terminate struct {
	Main Identity
	Why  Why
}

// Emit emits an event about something that happened without an operation.
type Emit struct {
	Notice Notice
	Main   Identity // the process, or the last one if none runs
	// Other is the previous process (PIDChanged) or the other one (ConflictPersists).
	Other  Identity
	Reason Reason // GivenUp: why
}

// Notice is what the event is about.
type Notice int

// The notices.
const (
	Restarted          Notice = iota // it had ended and was started again
	GivenUp                          // see Reason
	ExternalStart                    // another program started it
	PIDChanged                       // a successor replaced it
	ConflictPersists                 // the pid file still names another process while it lives
	StoppedBySignal                  // a signal has stopped it
	StillIndeterminate               // its state is indeterminate; emitted once an hour
	Overlapping                      // runs were skipped, since the previous one had not ended
	RunsFailed                       // several runs in a row failed
)

// Yield asks an automatic start to end as soon as it can.
type Yield struct{}

// Search asks for one search for the process, which ends with [Observed].
type Search struct{ Gen int }

// Watch reports the death of exactly this process with [Died], and replaces the previous
// watch. The zero identity watches nothing.
type Watch struct{ Main Identity }

// Arm starts the process's timer, which ends with [Fired].
type Arm struct {
	Timer Timer
	Gen   int
	Delay time.Duration // of a RetryTimer: to be spread by [Jitter]
	Least time.Duration // lower bound of the spread delay
}

func (Perform) effect()   {}
func (Refuse) effect()    {}
func (End) effect()       {}
func (Keep) effect()      {}
func (Save) effect()      {}
func (AutoStart) effect() {}
func (Terminate) effect() {}
func (Emit) effect()      {}
func (Yield) effect()     {}
func (Search) effect()    {}
func (Watch) effect()     {}
func (Arm) effect()       {}
