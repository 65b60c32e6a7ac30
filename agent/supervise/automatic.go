package supervise

import "time"

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
		m.postpone()
	case o.determinate():
		m.emitStarted(o, e.Ran)
		m.setUp(o.Fault)
		m.conclude(o, o.Fault != HostExhausted)
	default:
		m.markIndeterminate()
	}
	m.emit(Save{})
	m.next()
}

// postpone returns to the phase before an automatic start that yielded.
func (m *machine) postpone() {
	if m.Phase = m.before; m.Phase == Fatal {
		m.History.Probes--
		m.probeLater()
		return
	}
	if m.Policy.Resident {
		m.retry()
	}
}

// emitStarted emits the event for a process that runs after an automatic start.
func (m *machine) emitStarted(o Outcome, ran bool) {
	switch {
	case o.Observation != Alive:
	case m.Policy.Periodic && !ran:
		m.overlap() // an earlier start took effect late, or another program started the process
	case m.Policy.Periodic:
	case ran:
		m.emit(Emit{Notice: Restarted, Main: o.Main})
	default:
		m.emitSuccessor(o.Main)
	}
}

func (m *machine) retry() { m.arm(m.Policy.Delay(m.Failures)) }

func (m *machine) arm(delay time.Duration) {
	if m.recovering {
		delay = max(delay, m.Policy.RecoverDelay)
	}
	m.History.Due = m.now + Moment(delay)
	m.emit(Arm{Timer: RetryTimer, Gen: m.Gen, Delay: delay, Least: max(0, m.notBefore.since(m.now))})
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
	if m.Paused {
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

// terminateRequested begins the termination unless the request must be ignored; see
// [TerminateRequested].
func (m *machine) terminateRequested(e TerminateRequested) {
	if m.Work != Idle || m.Phase != Running || !m.SpecStored || m.Paused || e.Main == (Identity{}) || e.Main != m.Main {
		return
	}
	m.begin(Terminating)
	m.Phase, m.terminating = LimitKill, e.Why
	m.emit(Terminate{Main: m.Main, Why: e.Why})
}

func (m *machine) terminated(o Outcome) {
	if m.Work != Terminating {
		return
	}
	m.Work = Idle
	m.supersede()
	switch {
	case !o.determinate():
		m.resume()
	case o.Observation == Alive:
		m.conclude(o, false)
	default:
		if m.terminating == OverLimit {
			m.History.LimitKills = append(within(m.History.LimitKills, m.now, Moment(m.Policy.LimitWindow)), m.now)
		}
		m.Proven, m.Since = false, m.now // an immediate restart would not remove the reason for the termination
		m.conclude(o, true)
	}
	m.emit(Save{})
	m.next()
}
