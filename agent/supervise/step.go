package supervise

// maxIndeterminate is the number of consecutive indeterminate searches after which the
// process is [Uncertain]; a single one may be a race with the start or end of the process.
const maxIndeterminate = 3

// Step applies the event e, which happens at now, and returns the new state and the
// effects, to be performed in their order. It is pure: it depends on its arguments alone
// and does not change s.
func Step(s State, now Moment, e Event) (State, []Effect) {
	m := machine{State: s, now: now}
	e.apply(&m)
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
		m.awaitTick(failed)
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
		m.emitSuccessor(o.Main)
	}
	m.conclude(o, m.Main != Identity{})
	m.emit(Save{})
}

func (m *machine) swept() {
	if m.Work == Idle && (m.supervised() && !m.awaitsTick() || m.Main != Identity{}) {
		m.emit(Search{Gen: m.Gen})
	}
}

// recovered resumes a state that an earlier agent process stored: it arms the timer again
// and requests a search to determine whether the process still runs.
func (m *machine) recovered(e Recovered) {
	m.recovering, m.notBefore = true, e.NotBefore
	switch {
	case !m.supervised():
	case m.Phase == Backoff:
		m.arm(m.remaining(m.Policy.Delay(m.Failures)))
	case m.Phase == Fatal && m.mayProbe():
		m.arm(m.remaining(m.Policy.ProbeInterval))
	}
	m.emit(Search{Gen: m.Gen})
}
