package supervise

import "time"

func (m *machine) condemned(e Condemned) {
	if m.Work != Idle || m.Phase != Running || !m.Kept || m.Held || e.Main == (Identity{}) || e.Main != m.Main {
		return
	}
	m.begin(TakingDown)
	m.Phase, m.taking = LimitKill, e.Why
	m.emit(TakeDown{Main: m.Main, Why: e.Why})
}

func (m *machine) takenDown(o Outcome) {
	if m.Work != TakingDown {
		return
	}
	m.Work = Idle
	m.supersede()
	switch {
	case !o.conclusive():
		m.resume()
	case o.Sight == Alive:
		m.conclude(o, false)
	default:
		if m.taking == OverLimit {
			m.History.LimitKills = append(within(m.History.LimitKills, m.now, Moment(m.Policy.LimitWindow)), m.now)
		}
		m.Proven, m.Since = false, m.now // or [machine.gone] would start it again without a delay
		m.conclude(o, true)
	}
	m.emit(Save{})
	m.next()
}

// uncertainInterval is the minimum time between two [Doubtful] events.
const uncertainInterval = time.Hour

// hold suspends automatic starts and take-downs, or releases the start that
// became due meanwhile. That start observes the process before it acts.
func (m *machine) hold(on bool) {
	m.Held = on
	switch {
	case on && m.Work == AutoStarting:
		m.emit(GiveWay{})
	case !on && m.overdue:
		m.supersede()
		m.arm(0)
	}
}

// conflict decides which of two live processes is supervised: the known one,
// unless it is replacing itself.
func (m *machine) conflict(e Rivalled) {
	if m.Work != Idle || m.Phase != Running || e.Main == (Identity{}) || e.Main != m.Main || e.Rival == m.Main {
		return
	}
	switch {
	case e.Rival == Identity{}:
		m.endConflict()
	case e.Kin:
		m.supersede()
		m.succeed(e.Rival)
		m.running(e.Rival)
		m.emit(Save{})
	case e.Rival != m.Rival:
		m.Rival, m.conflictSince, m.conflictReported = e.Rival, m.now, false
	case !m.conflictReported && m.now.since(m.conflictSince) >= m.Policy.RivalWait:
		m.conflictReported = true
		m.emit(Tell{News: TwoMasters, Main: m.Main, Other: e.Rival})
	}
}

func (m *machine) endConflict() { m.Rival, m.conflictSince, m.conflictReported = Identity{}, 0, false }

// succeed emits an event if main is another process than the known one.
func (m *machine) succeed(main Identity) {
	switch {
	case m.Policy.Periodic: // each run is a new process
	case !m.supervised() || main == (Identity{}) || main == m.Main:
	case m.Main == Identity{}:
		m.emit(Tell{News: Adopted, Main: main})
	default:
		m.emit(Tell{News: PIDChanged, Main: main, Other: m.Main})
	}
}

// suspended records that the process was stopped by a signal, or continued. The
// agent only reports it and does not continue the process.
func (m *machine) suspended(e Suspended) {
	if e.Main == (Identity{}) || e.Main != m.Main || e.On == m.Suspended {
		return
	}
	m.Suspended = e.On
	if e.On {
		m.emit(Tell{News: Frozen, Main: m.Main})
	}
}

func (m *machine) reportUncertain() {
	if !m.supervised() || m.now < m.nextUncertain {
		return
	}
	m.nextUncertain = m.now + Moment(uncertainInterval)
	m.emit(Tell{News: Doubtful, Main: m.Main})
}
