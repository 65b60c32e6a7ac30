package supervise

// maxIndeterminate is the number of consecutive indeterminate observations that
// make a process [Uncertain]; a single one may be a race with its start or end.
const maxIndeterminate = 3

// Step applies an event at the time now and returns the new state and the
// effects, to be performed in their order. It is pure and does not change s.
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
		m.conflict(e)
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

// supersede invalidates all timers and observations requested so far.
func (m *machine) supersede() {
	m.Gen++
	m.overdue = false
}

// uncertain suspends automatic actions until an observation is conclusive.
func (m *machine) uncertain() {
	m.supersede()
	m.Phase, m.indeterminate = Uncertain, maxIndeterminate
	m.reportUncertain()
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
	if !o.conclusive() {
		switch m.indeterminate++; {
		case m.indeterminate == maxIndeterminate:
			m.uncertain()
		case m.indeterminate > maxIndeterminate:
			m.reportUncertain()
		}
		return
	}
	same := o.Sight == Alive && o.Main == m.Main && m.Phase == Running
	waiting := o.Sight == Gone && (m.Phase == Backoff || m.Phase == Fatal)
	if waiting || same && !m.recovering {
		m.indeterminate, m.recovering = 0, false
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
	if m.Work == Idle && (m.supervised() && !m.awaitsTick() || m.Main != Identity{}) {
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
		m.becameStable()
		m.emit(Save{})
	}
}

// recovered resumes a state that an earlier agent process stored: it arms the
// timers again and requests an observation of the process.
func (m *machine) recovered(e Recovered) {
	m.recovering, m.notBefore = true, e.NotBefore
	switch {
	case !m.supervised():
	case m.Phase == Backoff:
		m.arm(m.remaining(m.Policy.Delay(m.Failures)))
	case m.Phase == Fatal && m.mayProbe():
		m.arm(m.remaining(m.Policy.ProbeInterval))
	}
	m.emit(Look{Gen: m.Gen})
}
