package supervise

import "time"

// Sight is the conclusion of one observation of the process.
type Sight int

// The conclusions.
const (
	Unseen Sight = iota // the process was not observed
	Gone                // it does not run
	Alive               // it runs
	Doubt               // indeterminate: the host could not be read
)

// Event is an input of [Step].
type Event interface{ event() }

// Submitted queues an operation.
type Submitted struct{ Op Op }

// Class is the kind of end of a piece of work.
type Class int

// The classes.
const (
	Done        Class = iota // the goal was reached
	Already                  // it had been reached before
	Failed                   // it was not reached
	Refused                  // nothing was tried
	Interrupted              // an automatic start was interrupted for an operation
)

// Fault is the reason why the host could not start the command at all.
type Fault int

// The faults.
const (
	NoFault  Fault = iota
	BadSetup       // account, folder or program of the process is missing or unusable
	NoRoom         // the host has no resources for another process now
)

// Outcome is the end of an operation, an automatic start or a take-down.
type Outcome struct {
	Class Class
	Fault Fault // of a failed start
	Sight Sight
	Main  Identity // the process; set if Sight is Alive
	// Other is true if the operation's spec describes another program than the
	// stored spec: Sight is not about the stored program then.
	Other bool
}

// conclusive reports whether the outcome shows if the process runs.
func (o Outcome) conclusive() bool { return o.Sight == Alive || o.Sight == Gone }

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

// Why is the reason for a take-down, which no operation requested.
type Why string

// The reasons to take a process down.
const (
	OverLimit Why = "limit"
	Unhealthy Why = "health"
)

// Condemned requests that exactly this process is terminated. It is ignored
// unless Main runs, the process is idle and not held; the caller repeats it.
type Condemned struct {
	Main Identity
	Why  Why
}

// TakenDown ends a take-down.
type TakenDown struct{ Outcome Outcome }

// Hold suspends automatic starts and take-downs until the next Hold with On
// false. Operations are carried out regardless.
type Hold struct{ On bool }

// Rivalled reports that the pid file names Rival while Main runs: a conflict
// between the two. The zero Rival ends the conflict.
type Rivalled struct {
	Main, Rival Identity
	// Kin is true if Main is an ancestor or a sibling of Rival: the program
	// replaces itself.
	Kin bool
}

// Suspended reports that Main was stopped by a signal (On), or continued.
type Suspended struct {
	Main Identity
	On   bool
}

// Observed answers [Look].
type Observed struct {
	Gen   int
	Sight Sight
	Main  Identity
}

// Died reports the end of a watched process.
type Died struct{ Main Identity }

// Swept is the periodic trigger of an observation, for changes that no event reported.
type Swept struct{}

// Ticked triggers the next run of a periodic process; see [State.Ticks].
type Ticked struct{}

// Fired is the expiry of a timer of [Arm].
type Fired struct {
	Timer Timer
	Gen   int
}

// Recovered is the first event of a state that an earlier agent process stored.
type Recovered struct {
	NotBefore Moment // of the first automatic start
}

func (Submitted) event()   {}
func (Finished) event()    {}
func (AutoStarted) event() {}
func (Condemned) event()   {}
func (TakenDown) event()   {}
func (Hold) event()        {}
func (Rivalled) event()    {}
func (Suspended) event()   {}
func (Observed) event()    {}
func (Died) event()        {}
func (Swept) event()       {}
func (Ticked) event()      {}
func (Fired) event()       {}
func (Recovered) event()   {}

// Timer is the purpose of a timer. A process has at most one timer: arming
// another replaces it.
type Timer int

// The timers.
const (
	RetryTimer  Timer = iota // next automatic start, or next probe of a process that was given up
	StableTimer              // end of [Policy.StableAfter]
)

// Effect is an action that the caller of [Step] has to perform.
type Effect interface{ effect() }

// Perform carries out an operation; its end is [Finished].
type Perform struct {
	Op   Op
	Main Identity // the last verified process; zero = none
}

// Refuse ends an operation that was not begun.
type Refuse struct {
	ID  string
	Why Refusal
}

// Refusal is the reason of a [Refuse].
type Refusal int

// The refusals.
const (
	QueueFull  Refusal = iota
	Superseded         // a later operation has begun already
)

// End makes the result of an operation final and durable.
type End struct{ ID string }

// Keep stores the operation's spec as the spec of the process.
type Keep struct{ ID string }

// Save makes the state durable.
type Save struct{}

// AutoStart starts the process if it does not run; its end is [AutoStarted].
type AutoStart struct{}

// TakeDown terminates exactly this process, by force if needed; its end is
// [TakenDown].
type TakeDown struct {
	Main Identity
	Why  Why
}

// Tell emits an event about the process.
type Tell struct {
	News   News
	Main   Identity // the process, or the last one if it is gone
	Other  Identity // PIDChanged: the previous process; TwoMasters: the conflicting one
	Reason Reason   // GivenUp: why
}

// News is the kind of an emitted event.
type News int

// The kinds of emitted events.
const (
	Restarted   News = iota // an automatic start replaced a process that had ended
	GivenUp                 // automatic starts ended but for rare probes; see Reason
	Adopted                 // external start: the process was not started by the agent
	PIDChanged              // another process replaced the known one
	TwoMasters              // the pid file has named another process for [Policy.RivalWait]
	Frozen                  // the process was stopped by a signal
	Doubtful                // observations are indeterminate; at most once an hour
	Overlapping             // periodic runs were skipped, because the previous one had not ended
	RunsFailed              // periodic runs failed one after the other
)

// GiveWay asks an automatic start to end as soon as it can.
type GiveWay struct{}

// Look requests one observation of the process, answered with [Observed].
type Look struct{ Gen int }

// Watch requests [Died] at the end of exactly this process and replaces the
// previous watch. The zero identity watches nothing.
type Watch struct{ Main Identity }

// Arm starts the process's timer, answered with [Fired].
type Arm struct {
	Timer Timer
	Gen   int
	Delay time.Duration // of a RetryTimer: before [Jitter]
	Least time.Duration // lower bound after Jitter
}

func (Perform) effect()   {}
func (Refuse) effect()    {}
func (End) effect()       {}
func (Keep) effect()      {}
func (Save) effect()      {}
func (AutoStart) effect() {}
func (TakeDown) effect()  {}
func (Tell) effect()      {}
func (GiveWay) effect()   {}
func (Look) effect()      {}
func (Watch) effect()     {}
func (Arm) effect()       {}
