package supervise

import (
	"slices"
	"time"
)

// maxIndeterminate is the number of consecutive indeterminate searches after which the
// process is [Uncertain]; a single one may be a race with the start or end of the process.
const maxIndeterminate = 3

// Step applies the event e, which happens at now, and returns the new state and the
// effects, to be performed in their order. It is pure: it depends on its arguments alone
// and does not change s.
func Step(s State, now Moment, e Event) (State, []Effect) {
	m := machine{State: s, now: now}
	switch e := e.(type) {
	case Submitted:
		m.submitted(e.Op)
	case Finished:
		m.finished(e)
	case AutoStarted:
		m.autoStarted(e)
	case TerminateRequested:
		m.terminateRequested(e)
	case Terminated:
		m.terminated(e.Outcome)
	case Hold:
		m.hold(e.On)
	case PidFileConflict:
		m.pidFileConflict(e)
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

// machine is the working state of one [Step].
type machine struct {
	State
	now     Moment
	effects []Effect
}

func (m *machine) emit(effects ...Effect) { m.effects = append(m.effects, effects...) }

// supersede invalidates all pending timers and searches.
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
		m.emit(Yield{})
	}
	m.next()
}

// next begins the first waiting operation unless work is going on.
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

// begin begins work. Until the work ends, the machine starts no other work and ignores
// deaths, which the work detects itself.
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
	if e.Outcome.determinate() && (!e.Outcome.Other || m.keeps(e.Outcome)) {
		m.conclude(e.Outcome, m.attempted(e.Outcome))
	} else {
		m.resume()
	}
	m.emit(Save{}, End{ID: e.ID})
	m.next()
}

// decide changes the desired state according to the operation that ended. A failed operation
// does not change it, except that a kill that acted ends supervision.
func (m *machine) decide(o Outcome) {
	reached := o.Class == Done || o.Class == Already
	switch m.Op.Action {
	case Start, Restart, Supervise:
		if o.Class != Refused && (!o.Other || m.keeps(o)) {
			m.forgive() // an operator is handling the process
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

// keeps reports whether the operation's spec is stored as the spec of the process. A start
// that found a supervised process running does not replace the stored spec.
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
		if m.Desired == Down { // the caller wants the process running
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

// attempted reports whether the operation counts as a failed attempt if the process does
// not run afterwards. A supervise operation starts nothing itself.
func (m *machine) attempted(o Outcome) bool {
	return m.Op.Action != Supervise && o.Class != Refused
}

// resume returns to the phase before the work, which did not change the process.
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
		m.emit(Search{Gen: m.Gen})
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
	case o.Class == Interrupted && o.Observation != Alive:
		m.putOff()
	case o.determinate():
		m.brought(o, e.Ran)
		m.setUp(o.Fault)
		m.conclude(o, o.Fault != NoRoom)
	default:
		m.markIndeterminate()
	}
	m.emit(Save{})
	m.next()
}

// putOff returns to the phase before an automatic start that yielded.
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

// brought emits the event for a process that runs after an automatic start.
func (m *machine) brought(o Outcome, ran bool) {
	switch {
	case o.Observation != Alive:
	case m.Policy.Periodic && !ran:
		m.overlap() // an earlier start took effect late, or another program started the process
	case m.Policy.Periodic:
	case ran:
		m.emit(Emit{Notice: Restarted, Main: o.Main})
	default:
		m.succeed(o.Main)
	}
}

// markIndeterminate suspends automatic actions until a search is conclusive again.
func (m *machine) markIndeterminate() {
	m.supersede()
	m.Phase, m.indeterminate = Uncertain, maxIndeterminate
	m.emitIndeterminate()
}

// conclude applies a conclusive observation. failed means that a process that is gone
// counts as one more failure.
func (m *machine) conclude(o Outcome, failed bool) {
	m.indeterminate = 0
	if m.Policy.Periodic {
		failed = failed && o.Class == Failed
	}
	if o.Observation == Alive {
		m.running(o.Main)
	} else {
		m.gone(failed)
	}
	m.recovering = false
}

func (m *machine) running(main Identity) {
	if main != m.Main {
		m.Proven, m.Suspended, m.Since = false, false, m.now
		m.forgetConflict()
	}
	m.Main, m.Phase = main, Running
	m.watchStable()
}

// watchStable watches the process and arms the [StableTimer].
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
	m.forgetConflict()
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

// ranLong reports whether the process ran long enough that its end does not count as part of
// a crash loop: it ran for Policy.StableAfter, or this end is the first failure in a row and
// it ran for Policy.LongRun.
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
	m.emit(Search{Gen: m.Gen})
}

func (m *machine) observed(e Observed) {
	if e.Gen != m.Gen {
		return
	}
	o := Outcome{Observation: e.Observation, Main: e.Main}
	if !o.determinate() {
		switch m.indeterminate++; {
		case m.indeterminate == maxIndeterminate:
			m.markIndeterminate()
		case m.indeterminate > maxIndeterminate:
			m.emitIndeterminate()
		}
		return
	}
	same := o.Observation == Alive && o.Main == m.Main && m.Phase == Running
	waiting := o.Observation == Gone && (m.Phase == Backoff || m.Phase == Fatal)
	if waiting || same && !m.recovering {
		m.indeterminate, m.recovering = 0, false
		return
	}
	m.supersede()
	if o.Observation == Alive {
		m.succeed(o.Main)
	}
	m.conclude(o, m.Main != Identity{})
	m.emit(Save{})
}

func (m *machine) swept() {
	if m.Work == Idle && (m.supervised() && !m.rests() || m.Main != Identity{}) {
		m.emit(Search{Gen: m.Gen})
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

// recovered resumes a state that an earlier agent process stored: it arms the timer again
// and requests a search to determine whether the process still runs.
func (m *machine) recovered(e Recovered) {
	m.recovering, m.notBefore = true, e.NotBefore
	switch {
	case !m.supervised():
	case m.Phase == Backoff:
		m.arm(m.rest(m.Policy.Delay(m.Failures)))
	case m.Phase == Fatal && m.mayProbe():
		m.arm(m.rest(m.Policy.ProbeInterval))
	}
	m.emit(Search{Gen: m.Gen})
}
