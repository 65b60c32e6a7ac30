package supervise

import (
	"slices"
	"time"
)

// maxDoubts is how many looks in a row may fail to tell before the process
// counts as [Uncertain]; one alone may be a race with its start or end.
const maxDoubts = 3

// Step applies one event that happens now. It is pure: the same arguments give
// the same answer, and s is not changed. Effects are to be performed in their
// order.
func Step(s State, now Moment, e Event) (State, []Effect) {
	m := machine{State: s, now: now}
	switch e := e.(type) {
	case Submitted:
		m.submitted(e.Op)
	case Finished:
		m.finished(e)
	case AutoStarted:
		m.autoStarted(e)
	case Condemned:
		m.condemned(e)
	case TakenDown:
		m.takenDown(e.Outcome)
	case Hold:
		m.hold(e.On)
	case Rivalled:
		m.rivalled(e)
	case Suspended:
		m.suspended(e)
	case Observed:
		m.observed(e)
	case Died:
		m.died(e.Main)
	case Swept:
		m.swept()
	case Ticked:
		m.ticked()
	case Fired:
		m.fired(e)
	case Recovered:
		m.recovered(e)
	}
	return m.State, m.effects
}

// machine is one step under way.
type machine struct {
	State
	now     Moment
	effects []Effect
}

func (m *machine) emit(effects ...Effect) { m.effects = append(m.effects, effects...) }

// supersede makes every timer and look asked for so far void.
func (m *machine) supersede() {
	m.Gen++
	m.overdue = false
}

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
		if o.Class != Refused && (!o.Other || m.keeps(o)) {
			m.forgive() // somebody looks after it
		}
		if reached {
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
		return o.Class == Done || o.Class == Already && m.Op.Policy.registers() && !m.supervised()
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
	if !m.supervised() {
		m.Restarts = 0
	}
	m.Desired = None
	if m.Policy.registers() {
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
		m.probeLater()
	default:
		m.watchStable()
		m.emit(Look{Gen: m.Gen})
	}
}

func (m *machine) autoStarted(e AutoStarted) {
	if m.Work != AutoStarting {
		return
	}
	o := e.Outcome
	m.Work = Idle
	m.supersede()
	if e.Ran && m.Policy.Resident {
		m.started()
	}
	switch {
	case o.Class == Interrupted && o.Sight != Alive:
		m.putOff()
	case o.tells():
		m.brought(o, e.Ran)
		m.setUp(o.Fault)
		m.conclude(o, o.Fault != NoRoom)
	default:
		m.doubt()
	}
	m.emit(Save{})
	m.next()
}

// putOff goes back to where the process stood before an automatic start that
// gave way.
func (m *machine) putOff() {
	if m.Phase = m.before; m.Phase == Fatal {
		m.History.Probes--
		m.probeLater()
		return
	}
	if m.Policy.Resident {
		m.retry()
	}
}

// brought tells who brought the process back.
func (m *machine) brought(o Outcome, ran bool) {
	switch {
	case o.Sight != Alive:
	case m.Policy.Periodic && !ran:
		m.overlap() // it came up late, or somebody else began a run
	case m.Policy.Periodic:
	case ran:
		m.emit(Tell{News: Restarted, Main: o.Main})
	default:
		m.succeed(o.Main)
	}
}

// doubt leaves the process alone until a look can tell again.
func (m *machine) doubt() {
	m.supersede()
	m.Phase, m.doubts = Uncertain, maxDoubts
	m.tellDoubt()
}

// conclude settles the process on what was seen of it. failed says that a
// missing process is one more failure.
func (m *machine) conclude(o Outcome, failed bool) {
	m.doubts = 0
	if m.Policy.Periodic {
		failed = failed && o.Class == Failed
	}
	if o.Sight == Alive {
		m.running(o.Main)
	} else {
		m.gone(failed)
	}
	m.recovering = false
}

func (m *machine) running(main Identity) {
	if main != m.Main {
		m.Proven, m.Suspended, m.Since = false, false, m.now
		m.forgetRival()
	}
	m.Main, m.Phase = main, Running
	m.watchStable()
}

// watchStable watches the process and gives it the rest of its time to prove
// itself.
func (m *machine) watchStable() {
	if !m.supervised() {
		m.emit(Watch{})
		return
	}
	m.emit(Watch{Main: m.Main})
	if !m.Proven {
		m.emit(Arm{Timer: StableTimer, Gen: m.Gen, Delay: max(0, m.Policy.StableAfter-m.now.since(m.Since))})
	}
}

func (m *machine) gone(failed bool) {
	last, accident := m.Main, m.ranLong()
	m.Main, m.Proven, m.Suspended = Identity{}, false, false
	m.forgetRival()
	m.emit(Watch{})
	if !m.supervised() {
		m.Phase = Stopped
		m.forgive()
		return
	}
	if m.Policy.Periodic {
		m.await(failed)
		return
	}
	m.Phase = Backoff
	if failed {
		m.Failures++
	}
	if why := m.hopeless(); why != "" {
		m.giveUp(why, last)
		return
	}
	if accident && failed {
		m.arm(0)
		return
	}
	m.retry()
}

// ranLong reports whether the end of the process now is no loop: it has proven
// itself, or it ran for long and its end is the first failure of a row.
func (m *machine) ranLong() bool {
	first := m.Main != (Identity{}) && m.Failures == 0
	return m.Proven || first && m.now.since(m.Since) >= m.Policy.LongRun
}

func (m *machine) retry() { m.arm(m.Policy.Delay(m.Failures)) }

func (m *machine) arm(delay time.Duration) {
	if m.recovering {
		delay = max(delay, m.Policy.RecoverDelay)
	}
	m.History.Due = m.now + Moment(delay)
	m.emit(Arm{Timer: RetryTimer, Gen: m.Gen, Delay: delay, Least: max(0, m.notBefore.since(m.now))})
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
		switch m.doubts++; {
		case m.doubts == maxDoubts:
			m.doubt()
		case m.doubts > maxDoubts:
			m.tellDoubt()
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
	if o.Sight == Alive {
		m.succeed(o.Main)
	}
	m.conclude(o, m.Main != Identity{})
	m.emit(Save{})
}

func (m *machine) swept() {
	if m.Work == Idle && (m.supervised() && !m.rests() || m.Main != Identity{}) {
		m.emit(Look{Gen: m.Gen})
	}
}

func (m *machine) fired(e Fired) {
	if e.Gen != m.Gen {
		return
	}
	switch {
	case e.Timer == RetryTimer && (m.Phase == Backoff || m.Phase == Fatal && m.mayProbe()):
		m.due()
	case e.Timer == StableTimer && m.Phase == Running:
		m.proven()
		m.emit(Save{})
	}
}

// due begins an automatic start.
func (m *machine) due() {
	if m.Held {
		m.overdue = true
		return
	}
	if m.Phase == Fatal {
		m.History.Probes++
	}
	m.begin(AutoStarting)
	m.Phase = Starting
	m.emit(AutoStart{})
}

// recovered takes up a state as an earlier agent process left it. What was
// waiting waits again; whether the process lived on, a look will tell.
func (m *machine) recovered(e Recovered) {
	m.recovering, m.notBefore = true, e.NotBefore
	switch {
	case !m.supervised():
	case m.Phase == Backoff:
		m.arm(m.rest(m.Policy.Delay(m.Failures)))
	case m.Phase == Fatal && m.mayProbe():
		m.arm(m.rest(m.Policy.ProbeInterval))
	}
	m.emit(Look{Gen: m.Gen})
}
