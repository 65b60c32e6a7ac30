package supervise

import "slices"

func (m *machine) submitted(op Op) {
	if m.Op.ID != "" && op.before(m.Op) {
		m.emit(Refuse{ID: op.ID, Why: Superseded})
		return
	}
	if len(m.Queue) >= MaxQueue {
		m.emit(Refuse{ID: op.ID, Why: QueueFull})
		return
	}
	at := len(m.Queue)
	for at > 0 && op.before(m.Queue[at-1]) {
		at--
	}
	m.Queue = slices.Insert(slices.Clone(m.Queue), at, op)
	if m.Work == AutoStarting {
		m.emit(GiveWay{})
	}
	m.next()
}

// next begins the first waiting operation unless something is under way.
func (m *machine) next() {
	if m.Work != Idle || len(m.Queue) == 0 {
		return
	}
	op := m.Queue[0]
	m.Queue = slices.Clone(m.Queue[1:])
	m.begin(Operating)
	m.Op = op
	switch op.Action {
	case Start:
		m.Phase = Starting
	case Stop, Kill:
		m.Phase = Stopping
	case Restart:
		m.Phase = Restarting
	case Reload:
		m.Phase = Reloading
	case Supervise, Release:
	}
	m.emit(Perform{Op: op, Main: m.Main})
}

// begin marks the machine as busy. Until the work ends nothing else is started,
// and the work itself observes whether the process ends.
func (m *machine) begin(w Work) {
	m.supersede()
	m.before = m.Phase
	m.Work = w
}

func (m *machine) finished(e Finished) {
	if m.Work != Operating || e.ID != m.Op.ID {
		return
	}
	m.Work = Idle
	m.supersede()
	m.decide(e.Outcome)
	if e.Outcome.conclusive() && (!e.Outcome.Other || m.keeps(e.Outcome)) {
		m.conclude(e.Outcome, m.attempted(e.Outcome))
	} else {
		m.resume()
	}
	m.emit(Save{}, End{ID: e.ID})
	m.next()
}

// decide changes the desired state after an operation. A failed operation changes
// nothing, except that a kill that was tried always makes it [Down].
func (m *machine) decide(o Outcome) {
	reached := o.Class == Done || o.Class == Already
	switch m.Op.Action {
	case Start, Restart, Supervise:
		if o.Class != Refused && (!o.Other || m.keeps(o)) {
			m.forgive() // an operator acted on the process
		}
		if reached {
			m.register(o)
		}
	case Stop:
		if reached {
			m.Desired = Down
		}
	case Kill:
		if o.Class != Refused {
			m.Desired = Down
		}
	case Release:
		if reached {
			m.Desired = None
		}
	case Reload:
	}
}

// keeps reports whether the operation's spec replaces the stored spec. A start
// that found a supervised process running does not replace it.
func (m *machine) keeps(o Outcome) bool {
	switch m.Op.Action {
	case Start, Restart, Supervise:
		return o.Class == Done || o.Class == Already && m.Op.Policy.registers() && !m.supervised()
	case Stop, Kill, Release, Reload:
	}
	return false
}

// register stores the operation's spec and sets the desired state by it.
func (m *machine) register(o Outcome) {
	if !m.keeps(o) {
		if m.Desired == Down { // it runs now, as the operation requested
			m.Desired = None
		}
		return
	}
	m.Kept, m.Policy = true, m.Op.Policy
	if !m.supervised() {
		m.Restarts = 0
	}
	m.Desired = None
	if m.Policy.registers() {
		m.Desired = Up
	}
	m.emit(Keep{ID: m.Op.ID})
}

// attempted reports whether the operation counts as a failed attempt if the
// process does not run afterwards. Supervise does not start anything itself.
func (m *machine) attempted(o Outcome) bool {
	return m.Op.Action != Supervise && o.Class != Refused
}

// resume restores the phase from before work that had no effect on the process.
func (m *machine) resume() {
	m.Phase = m.before
	if !m.supervised() {
		return
	}
	switch m.Phase {
	case Backoff:
		m.retry()
	case Fatal:
		m.probeLater()
	default:
		m.watchStable()
		m.emit(Look{Gen: m.Gen})
	}
}
