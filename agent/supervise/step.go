package supervise

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

// doubt leaves the process alone until a look can tell again.
func (m *machine) doubt() {
	m.supersede()
	m.Phase, m.doubts = Uncertain, maxDoubts
	m.tellDoubt()
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
