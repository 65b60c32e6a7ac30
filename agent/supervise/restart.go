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
		m.countStart()
	}
	switch {
	case o.Class == Interrupted && o.Sight != Alive:
		m.postpone()
	case o.conclusive():
		m.reportStart(o, e.Ran)
		m.countSetup(o.Fault)
		m.conclude(o, o.Fault != NoRoom)
	default:
		m.uncertain()
	}
	m.emit(Save{})
	m.next()
}

// postpone restores the phase from before an automatic start that was interrupted.
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

// reportStart emits whether the agent or an external start brought the process up.
func (m *machine) reportStart(o Outcome, ran bool) {
	switch {
	case o.Sight != Alive:
	case m.Policy.Periodic && !ran:
		m.overlap() // the previous run came up late, or the run was started externally
	case m.Policy.Periodic:
	case ran:
		m.emit(Tell{News: Restarted, Main: o.Main})
	default:
		m.succeed(o.Main)
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

// conclude applies a conclusive outcome. failed counts a process that is gone as
// one more failure.
func (m *machine) conclude(o Outcome, failed bool) {
	m.indeterminate = 0
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
		m.endConflict()
	}
	m.Main, m.Phase = main, Running
	m.watchStable()
}

// watchStable watches the process, and arms the rest of [Policy.StableAfter].
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
	m.endConflict()
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
	if why := m.giveUpReason(); why != "" {
		m.giveUp(why, last)
		return
	}
	if accident && failed {
		m.arm(0)
		return
	}
	m.retry()
}

// ranLong reports whether the end of the process is no sign of a restart loop:
// the process was stable, or it ran for [Policy.LongRun] without earlier failures.
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
