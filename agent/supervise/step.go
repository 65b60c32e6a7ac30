package supervise

import (
	"slices"
	"time"
)

// maxDoubts is how many looks in a row may fail to tell before the process
// counts as [Uncertain]; one alone may be a race with its start or end.
const maxDoubts = 3

// Step applies one event. It is pure: the same arguments give the same answer,
// and s is not changed. Effects are to be performed in their order.
func Step(s State, e Event) (State, []Effect) {
	m := machine{State: s}
	switch e := e.(type) {
	case Submitted:
		m.submitted(e.Op)
	case Finished:
		m.finished(e)
	case AutoStarted:
		m.autoStarted(e.Outcome)
	case Observed:
		m.observed(e)
	case Died:
		m.died(e.Main)
	case Swept:
		m.swept()
	case Fired:
		m.fired(e)
	case Recovered:
		m.recovered()
	}
	return m.State, m.effects
}

// machine is one step under way.
type machine struct {
	State
	effects []Effect
}

func (m *machine) emit(effects ...Effect) { m.effects = append(m.effects, effects...) }

// supersede makes every timer and look asked for so far void.
func (m *machine) supersede() { m.Gen++ }

func (m *machine) submitted(op Op) {
	if m.Op.ID != "" && op.before(m.Op) {
		m.emit(Refuse{ID: op.ID, Why: Superseded})
		return
	}
	if len(m.Queue) >= MaxQueue {
		m.emit(Refuse{ID: op.ID, Why: QueueFull})
		return
	}
	at := len(m.Queue)
	for at > 0 && op.before(m.Queue[at-1]) {
		at--
	}
	m.Queue = slices.Insert(slices.Clone(m.Queue), at, op)
	if m.Work == AutoStarting {
		m.emit(GiveWay{})
	}
	m.next()
}

// next begins the first waiting operation unless something is under way.
func (m *machine) next() {
	if m.Work != Idle || len(m.Queue) == 0 {
		return
	}
	op := m.Queue[0]
	m.Queue = slices.Clone(m.Queue[1:])
	m.begin(Operating)
	m.Op = op
	switch op.Action {
	case Start:
		m.Phase = Starting
	case Stop, Kill:
		m.Phase = Stopping
	case Restart:
		m.Phase = Restarting
	case Reload:
		m.Phase = Reloading
	case Supervise, Release:
	}
	m.emit(Perform{Op: op, Main: m.Main})
}

// begin makes the machine busy: from here to the end of the work nothing else
// is started, and deaths are the work's own to notice.
func (m *machine) begin(w Work) {
	m.supersede()
	m.before = m.Phase
	m.Work = w
}

func (m *machine) finished(e Finished) {
	if m.Work != Operating || e.ID != m.Op.ID {
		return
	}
	m.Work = Idle
	m.supersede()
	m.decide(e.Outcome)
	if e.Outcome.tells() && (!e.Outcome.Other || m.keeps(e.Outcome)) {
		m.conclude(e.Outcome, m.attempted(e.Outcome))
	} else {
		m.resume()
	}
	m.emit(Save{}, End{ID: e.ID})
	m.next()
}

// decide changes what is wanted of the process, by the operation that ended.
// A failed operation changes nothing, except that a kill that was tried says
// for good that the process is not wanted.
func (m *machine) decide(o Outcome) {
	reached := o.Class == Done || o.Class == Already
	switch m.Op.Action {
	case Start, Restart, Supervise:
		if reached {
			m.Failures = 0
			m.want(o)
		}
	case Stop:
		if reached {
			m.Desired = Down
		}
	case Kill:
		if o.Class != Refused {
			m.Desired = Down
		}
	case Release:
		if reached {
			m.Desired = None
		}
	case Reload:
	}
}

// keeps reports whether the operation's spec becomes the process's own. A
// start that found the process running leaves the spec of a supervised
// process alone.
func (m *machine) keeps(o Outcome) bool {
	switch m.Op.Action {
	case Start, Restart, Supervise:
		return o.Class == Done || o.Class == Already && m.Op.Policy.Resident && !m.supervised()
	case Stop, Kill, Release, Reload:
	}
	return false
}

func (m *machine) want(o Outcome) {
	if !m.keeps(o) {
		if m.Desired == Down { // it runs, as was asked for
			m.Desired = None
		}
		return
	}
	m.Kept, m.Policy = true, m.Op.Policy
	m.Desired = None
	if m.Policy.Resident {
		m.Desired = Up
	}
	m.emit(Keep{ID: m.Op.ID})
}

// attempted reports whether the operation that ended counts as a failed
// attempt when the process is not there afterwards. Supervising starts
// nothing itself.
func (m *machine) attempted(o Outcome) bool {
	return m.Op.Action != Supervise && o.Class != Refused
}

// resume goes back to where the process stood before work that did nothing
// to it.
func (m *machine) resume() {
	m.Phase = m.before
	if !m.supervised() {
		return
	}
	switch m.Phase {
	case Backoff:
		m.retry()
	case Fatal:
	default:
		m.watchStable()
		m.emit(Look{Gen: m.Gen})
	}
}

func (m *machine) autoStarted(o Outcome) {
	if m.Work != AutoStarting {
		return
	}
	m.Work = Idle
	m.supersede()
	switch {
	case o.Class == Interrupted && o.Sight != Alive:
		m.Phase = Backoff
		m.retry()
	case o.tells():
		m.conclude(o, true)
	default:
		m.doubt()
	}
	m.emit(Save{})
	m.next()
}

// doubt leaves the process alone until a look can tell again.
func (m *machine) doubt() {
	m.supersede()
	m.Phase, m.doubts = Uncertain, maxDoubts
}

// conclude settles the process on what was seen of it. failed says that a
// missing process is one more failure.
func (m *machine) conclude(o Outcome, failed bool) {
	m.doubts = 0
	if o.Sight == Alive {
		m.running(o.Main)
	} else {
		m.gone(failed)
	}
	m.recovering = false
}

func (m *machine) running(main Identity) {
	if main != m.Main {
		m.Proven = false
	}
	m.Main, m.Phase = main, Running
	m.watchStable()
}

// watchStable watches the process and gives it time to prove itself.
func (m *machine) watchStable() {
	if !m.supervised() {
		m.emit(Watch{})
		return
	}
	m.emit(Watch{Main: m.Main})
	if !m.Proven {
		m.emit(Arm{Timer: StableTimer, Gen: m.Gen, Delay: m.Policy.StableAfter})
	}
}

func (m *machine) gone(failed bool) {
	proven := m.Proven
	m.Main, m.Proven = Identity{}, false
	m.emit(Watch{})
	if !m.supervised() {
		m.Phase, m.Failures = Stopped, 0
		return
	}
	m.Phase = Backoff
	if failed {
		m.Failures++
	}
	if m.Policy.exhausted(m.Failures) {
		m.Phase = Fatal
		return
	}
	if proven && failed {
		m.arm(0) // a death after a long run is no loop
		return
	}
	m.retry()
}

func (m *machine) retry() { m.arm(m.Policy.Delay(m.Failures)) }

func (m *machine) arm(delay time.Duration) {
	if m.recovering {
		delay = max(delay, m.Policy.RecoverDelay)
	}
	m.emit(Arm{Timer: RetryTimer, Gen: m.Gen, Delay: delay})
}

func (m *machine) died(main Identity) {
	if m.Work != Idle || main == (Identity{}) || main != m.Main {
		return
	}
	m.supersede()
	m.Phase = Exited
	m.emit(Look{Gen: m.Gen})
}

func (m *machine) observed(e Observed) {
	if e.Gen != m.Gen {
		return
	}
	o := Outcome{Sight: e.Sight, Main: e.Main}
	if !o.tells() {
		if m.doubts++; m.doubts == maxDoubts {
			m.doubt()
		}
		return
	}
	same := o.Sight == Alive && o.Main == m.Main && m.Phase == Running
	waiting := o.Sight == Gone && (m.Phase == Backoff || m.Phase == Fatal)
	if waiting || same && !m.recovering {
		m.doubts, m.recovering = 0, false
		return
	}
	m.supersede()
	m.conclude(o, m.Main != Identity{})
	m.emit(Save{})
}

func (m *machine) swept() {
	if m.Work == Idle && (m.supervised() || m.Main != Identity{}) {
		m.emit(Look{Gen: m.Gen})
	}
}

func (m *machine) fired(e Fired) {
	if e.Gen != m.Gen {
		return
	}
	switch {
	case e.Timer == RetryTimer && m.Phase == Backoff:
		m.begin(AutoStarting)
		m.Phase = Starting
		m.emit(AutoStart{})
	case e.Timer == StableTimer && m.Phase == Running:
		m.Failures, m.Proven = 0, true
		m.emit(Save{})
	}
}

// recovered takes up a state as an earlier agent process left it. What was
// waiting waits again; whether the process lived on, a look will tell.
func (m *machine) recovered() {
	m.recovering = true
	if m.supervised() && m.Phase == Backoff {
		m.retry()
	}
	m.emit(Look{Gen: m.Gen})
}
