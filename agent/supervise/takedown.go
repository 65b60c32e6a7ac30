package supervise

import "time"

// condemned takes the process down if it is the one that was meant, and if
// nobody else is just deciding about it.
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
	case !o.tells():
		m.resume()
	case o.Sight == Alive:
		m.conclude(o, false)
	default:
		if m.taking == OverLimit {
			m.History.LimitKills = append(within(m.History.LimitKills, m.now, Moment(m.Policy.LimitWindow)), m.now)
		}
		m.Proven, m.Since = false, m.now // its end was no accident that a start at once would mend
		m.conclude(o, true)
	}
	m.emit(Save{})
	m.next()
}

// doubtEvery is how often it is told that a process is uncertain.
const doubtEvery = time.Hour

// hold suspends automatic starts and take-downs, or has what became due
// meanwhile happen now. A start looks again before it acts.
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

// rivalled decides which of two living processes is ours: the one that we
// know, unless that one hands over.
func (m *machine) rivalled(e Rivalled) {
	if m.Work != Idle || m.Phase != Running || e.Main == (Identity{}) || e.Main != m.Main || e.Rival == m.Main {
		return
	}
	switch {
	case e.Rival == Identity{}:
		m.forgetRival()
	case e.Kin:
		m.supersede()
		m.succeed(e.Rival)
		m.running(e.Rival)
		m.emit(Save{})
	case e.Rival != m.Rival:
		m.Rival, m.rivalSince, m.rivalTold = e.Rival, m.now, false
	case !m.rivalTold && m.now.since(m.rivalSince) >= m.Policy.RivalWait:
		m.rivalTold = true
		m.emit(Tell{News: TwoMasters, Main: m.Main, Other: e.Rival})
	}
}

func (m *machine) forgetRival() { m.Rival, m.rivalSince, m.rivalTold = Identity{}, 0, false }

// succeed tells that another process than the known one is ours now.
func (m *machine) succeed(main Identity) {
	switch {
	case m.Policy.Periodic: // whoever begins a run of it
	case !m.supervised() || main == (Identity{}) || main == m.Main:
	case m.Main == Identity{}:
		m.emit(Tell{News: Adopted, Main: main})
	default:
		m.emit(Tell{News: PIDChanged, Main: main, Other: m.Main})
	}
}

// suspended takes note that the process was stopped by a signal: it is neither
// dead nor at work, and whoever stopped it will know why.
func (m *machine) suspended(e Suspended) {
	if e.Main == (Identity{}) || e.Main != m.Main || e.On == m.Suspended {
		return
	}
	m.Suspended = e.On
	if e.On {
		m.emit(Tell{News: Frozen, Main: m.Main})
	}
}

func (m *machine) tellDoubt() {
	if !m.supervised() || m.now < m.nextDoubt {
		return
	}
	m.nextDoubt = m.now + Moment(doubtEvery)
	m.emit(Tell{News: Doubtful, Main: m.Main})
}
