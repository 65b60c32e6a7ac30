package supervise

import "time"

// Observation is the result of a search for the process.
type Observation int

// The observations.
const (
	Unseen        Observation = iota // no search was made
	Gone                             // the process does not run
	Alive                            // the process runs
	Indeterminate                    // the search could not determine whether the process runs
)

// Event is something that happened to a process.
type Event interface{ apply(m *machine) }

// Submitted reports an operation that a caller submitted.
type Submitted struct{ Op Op }

// Class classifies the result of an operation, an automatic start or a termination.
type Class int

// The classes.
const (
	Done        Class = iota // goal reached
	Already                  // goal reached before the work began
	Failed                   // goal not reached
	Refused                  // rejected without acting
	Interrupted              // ended early: an operation was submitted, or the engine ended
)

// Fault is the cause of a failed start if the cause lies in the host, not in the process.
type Fault int

// The faults.
const (
	NoFault       Fault = iota
	BadSetup            // account, folder or program of the process is missing or unusable
	HostExhausted       // the host cannot spawn another process now
)

// Outcome is the result of an operation, an automatic start or a termination.
type Outcome struct {
	Class       Class
	Fault       Fault // cause of a failed start
	Observation Observation
	Main        Identity // process found; set if Observation == Alive
	// Other reports that the operation's spec describes another program than the stored
	// spec: the observation does not apply to the supervised process.
	Other bool
	// Replaced reports that the operation ended the process of the stored spec, of another
	// program: its spec becomes the stored spec even if it failed.
	Replaced bool
}

// determinate reports whether the observation is Alive or Gone.
func (o Outcome) determinate() bool { return o.Observation == Alive || o.Observation == Gone }

// Finished reports the end of the operation with this ID.
type Finished struct {
	ID      string
	Outcome Outcome
}

// AutoStarted reports the end of an automatic start.
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

// TerminateRequested requests the termination of the process Main. It is ignored if Main
// is not the running process, if work is in progress or if automatic actions are paused: the sender
// repeats the request while its reason persists.
type TerminateRequested struct {
	Main Identity
	Why  Why
}

// Terminated reports the end of a termination.
type Terminated struct{ Outcome Outcome }

// Pause suspends automatic starts and terminations until the next Pause with On false.
// Operations are still carried out.
type Pause struct{ On bool }

// PidFileConflict reports the process, other than Main, that the pid file names while Main
// lives. Other is zero if the pid file names Main or no process.
type PidFileConflict struct {
	Main, Other Identity
	// Kin reports whether Main is an ancestor or a sibling of Other: such a program is
	// replacing itself.
	Kin bool
}

// Suspended reports that a signal has stopped Main (On) or that Main has continued.
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

// Died reports the end of a watched process.
type Died struct{ Main Identity }

// Swept is the periodic request to check for changes that no event reports.
type Swept struct{}

// Ticked reports that the next run of a periodic process is due; see [State.Ticks].
type Ticked struct{}

// Fired reports the expiry of a timer that was armed by [Arm].
type Fired struct {
	Timer Timer
	Gen   int
}

// Recovered is the first event after an agent restart, for a state that the earlier agent
// process stored.
type Recovered struct {
	// NotBefore is the earliest time of an automatic start.
	NotBefore Moment
}

func (e Submitted) apply(m *machine)          { m.submitted(e.Op) }
func (e Finished) apply(m *machine)           { m.finished(e) }
func (e AutoStarted) apply(m *machine)        { m.autoStarted(e) }
func (e TerminateRequested) apply(m *machine) { m.terminateRequested(e) }
func (e Terminated) apply(m *machine)         { m.terminated(e.Outcome) }
func (e Pause) apply(m *machine)              { m.pause(e.On) }
func (e PidFileConflict) apply(m *machine)    { m.pidFileConflict(e) }
func (e Suspended) apply(m *machine)          { m.suspended(e) }
func (e Observed) apply(m *machine)           { m.observed(e) }
func (e Died) apply(m *machine)               { m.died(e.Main) }
func (Swept) apply(m *machine)                { m.swept() }
func (Ticked) apply(m *machine)               { m.ticked() }
func (e Fired) apply(m *machine)              { m.fired(e) }
func (e Recovered) apply(m *machine)          { m.recovered(e) }

// Timer is the purpose of a timer. A process has at most one timer; arming it replaces the
// previous one.
type Timer int

// The timers.
const (
	RetryTimer  Timer = iota // next automatic start due; after giving up: next attempt of Policy.ProbeTries due
	StableTimer              // Main has run for Policy.StableAfter
)

// Effect is something that the caller of [Step] must do.
type Effect interface{ effect() }

// Perform carries out an operation. [Finished] reports its end.
type Perform struct{ ID string }

// Refuse rejects an operation that has not begun.
type Refuse struct {
	ID  string
	Why Refusal
}

// Refusal is the reason for a [Refuse].
type Refusal int

// The refusals.
const (
	QueueFull  Refusal = iota
	Superseded         // a later operation has already begun
)

// End persists the final result of an operation.
type End struct{ ID string }

// StoreSpec stores the operation's spec as the spec of the process.
type StoreSpec struct{ ID string }

// Save persists the state.
type Save struct{}

// AutoStart starts the process if it does not run. [AutoStarted] reports the end.
type AutoStart struct{}

// Terminate ends the process Main: by the stop command, the kill command, SIGTERM and
// SIGKILL, until one of them succeeds. [Terminated] reports the end.
type Terminate struct {
	Main Identity
	Why  Why
}

// Emit emits an event about a change that no operation caused.
type Emit struct {
	Notice Notice
	Main   Identity // running process; if none runs, the last one
	// Other is the previous process (PIDChanged) or the process that the pid file names
	// (ConflictPersists).
	Other  Identity
	Reason Reason // cause of GivenUp
}

// Notice is the subject of an event.
type Notice int

// The notices.
const (
	Restarted          Notice = iota // the process died and was restarted
	GivenUp                          // automatic starts were given up; see Reason
	ExternalStart                    // another program started the process
	PIDChanged                       // a successor replaced the process
	ConflictPersists                 // the pid file still names another process while the supervised one lives
	StoppedBySignal                  // a signal stopped the process
	StillIndeterminate               // the state of the process is indeterminate; emitted at most once an hour
	Overlapping                      // runs were skipped because the previous run had not ended
	RunsFailed                       // several runs in a row failed
)

// Yield requests the automatic start in progress to end early.
type Yield struct{}

// Search requests one search for the process. [Observed] reports the result.
type Search struct{ Gen int }

// Watch watches the process Main, whose end [Died] reports, and replaces the previous
// watch. The zero identity ends the watch.
type Watch struct{ Main Identity }

// Arm starts the timer of the process. [Fired] reports its expiry.
type Arm struct {
	Timer Timer
	Gen   int
	Delay time.Duration // of a RetryTimer: the delay before [Jitter] is applied
	Least time.Duration // lower bound of the delay after [Jitter] is applied
}

func (Perform) effect()   {}
func (Refuse) effect()    {}
func (End) effect()       {}
func (StoreSpec) effect() {}
func (Save) effect()      {}
func (AutoStart) effect() {}
func (Terminate) effect() {}
func (Emit) effect()      {}
func (Yield) effect()     {}
func (Search) effect()    {}
func (Watch) effect()     {}
func (Arm) effect()       {}
