package supervise

import "time"

// Sight is what a look at the process concluded.
type Sight int

// The sights.
const (
	Unseen Sight = iota // nobody looked
	Gone                // it does not run
	Alive               // it runs
	Doubt               // the truth could not be read
)

// Event is something that happened to a process.
type Event interface{ event() }

// Submitted is an operation that was asked for.
type Submitted struct{ Op Op }

// Class is what became of a piece of work.
type Class int

// The classes.
const (
	Done        Class = iota // the goal is reached
	Already                  // it was reached before
	Failed                   // it was not reached
	Refused                  // nothing was tried
	Interrupted              // an automatic start gave way to an operation
)

// Fault is why a start could not even be tried, where that is not the
// process's own doing.
type Fault int

// The faults.
const (
	NoFault  Fault = iota
	BadSetup       // the host is not set up for the process: its account, its folder, its program
	NoRoom         // the host has no room for another process now
)

// Outcome is the end of an operation, an automatic start or a take-down.
type Outcome struct {
	Class Class
	Fault Fault // of a start that failed
	Sight Sight
	Main  Identity // Sight == Alive: the process
	// Other says that the operation's spec describes another program than the
	// kept one, so that what was seen says nothing about the kept one.
	Other bool
}

// tells reports whether the outcome says if the process runs.
func (o Outcome) tells() bool { return o.Sight == Alive || o.Sight == Gone }

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

// Why is what makes a process have to go though nobody asked for it.
type Why string

// The reasons to take a process down.
const (
	OverLimit Why = "limit"
	Unhealthy Why = "health"
)

// Condemned asks to take exactly this process down. Nothing happens unless it
// is the one that runs, nothing else is under way and nothing is held: whoever
// asks does so again later.
type Condemned struct {
	Main Identity
	Why  Why
}

// TakenDown ends a take-down.
type TakenDown struct{ Outcome Outcome }

// Hold suspends automatic starts and take-downs until the next Hold with On
// false; operations are carried out all the same.
type Hold struct{ On bool }

// Rivalled says whom the pid file names while Main lives; the zero Rival says
// that it names Main again, or nobody.
type Rivalled struct {
	Main, Rival Identity
	// Kin says that Main is an ancestor or a sibling of Rival: a program that
	// replaces itself.
	Kin bool
}

// Suspended says that Main was stopped by a signal, or goes on.
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

// Died says that a watched process ended.
type Died struct{ Main Identity }

// Swept is the regular reminder that catches whatever no event told.
type Swept struct{}

// Ticked says that it is time for the next run of a periodic process; see
// [State.Ticks].
type Ticked struct{}

// Fired is a timer of [Arm] that ran out.
type Fired struct {
	Timer Timer
	Gen   int
}

// Recovered opens the life of a state that an earlier agent process left.
type Recovered struct {
	// NotBefore is when the first automatic start may come.
	NotBefore Moment
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

// Timer says what a timer is for. A process has at most one: arming it
// replaces the one before.
type Timer int

// The timers.
const (
	RetryTimer  Timer = iota // time for an automatic start, of one given up for a rare attempt
	StableTimer              // the process has proven itself
)

// Effect is something to do.
type Effect interface{ effect() }

// Perform carries out an operation; its end is [Finished].
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

// AutoStart starts the process if it does not run; its end is [AutoStarted].
type AutoStart struct{}

// TakeDown ends exactly this process, whatever that takes; its end is
// [TakenDown].
type TakeDown struct {
	Main Identity
	Why  Why
}

// Tell has something told that nobody asked for.
type Tell struct {
	News News
	Main Identity // the process; of one that is gone, the last one
	// Other is the process before (PIDChanged) or beside it (TwoMasters).
	Other  Identity
	Reason Reason // GivenUp: why
}

// News is what there is to tell.
type News int

// The news.
const (
	Restarted   News = iota // it had ended and was started again
	GivenUp                 // see Reason
	Adopted                 // somebody else started it
	PIDChanged              // a successor took its place
	TwoMasters              // the pid file goes on naming another process while it lives
	Frozen                  // it was stopped by a signal
	Doubtful                // it is uncertain; told once in an hour
	Overlapping             // runs were left out, since the one before had not ended
	RunsFailed              // runs failed one after the other
)

// GiveWay asks an automatic start to end as soon as it can.
type GiveWay struct{}

// Look asks for one look at the process, answered with [Observed].
type Look struct{ Gen int }

// Watch reports the death of exactly this process with [Died]; it replaces
// the watch before. The zero identity watches nothing.
type Watch struct{ Main Identity }

// Arm starts the process's timer, answered with [Fired].
type Arm struct {
	Timer Timer
	Gen   int
	Delay time.Duration // of a RetryTimer: to be spread by [Jitter]
	Least time.Duration // not before that, however it is spread
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
