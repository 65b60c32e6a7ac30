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

// Outcome is the end of an operation or of an automatic start.
type Outcome struct {
	Class Class
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
type AutoStarted struct{ Outcome Outcome }

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

// Fired is a timer of [Arm] that ran out.
type Fired struct {
	Timer Timer
	Gen   int
}

// Recovered opens the life of a state that an earlier agent process left.
type Recovered struct{}

func (Submitted) event()   {}
func (Finished) event()    {}
func (AutoStarted) event() {}
func (Observed) event()    {}
func (Died) event()        {}
func (Swept) event()       {}
func (Fired) event()       {}
func (Recovered) event()   {}

// Timer says what a timer is for. A process has at most one: arming it
// replaces the one before.
type Timer int

// The timers.
const (
	RetryTimer  Timer = iota // time for an automatic start
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
	Delay time.Duration
}

func (Perform) effect()   {}
func (Refuse) effect()    {}
func (End) effect()       {}
func (Keep) effect()      {}
func (Save) effect()      {}
func (AutoStart) effect() {}
func (GiveWay) effect()   {}
func (Look) effect()      {}
func (Watch) effect()     {}
func (Arm) effect()       {}
