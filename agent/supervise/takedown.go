package supervise

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
