package supervise

// terminateRequested begins the termination unless the request must be ignored; see
// [TerminateRequested].
func (m *machine) terminateRequested(e TerminateRequested) {
	if m.Work != Idle || m.Phase != Running || !m.Kept || m.Held || e.Main == (Identity{}) || e.Main != m.Main {
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
