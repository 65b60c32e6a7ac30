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
