package supervise

import "slices"

func (m *machine) submitted(op Op) {
	if m.Op.ID != "" && op.before(m.Op) {
		m.emit(Refuse{ID: op.ID, Why: Superseded})
		return
	}
	if op.Action == Kill {
		m.supersedeQueue(op)
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
		m.emit(Yield{})
	}
	m.next()
}

// supersedeQueue refuses the operations that would begin before a kill: the kill must not wait
// for them, and none may start the process after it.
func (m *machine) supersedeQueue(kill Op) {
	var later []Op
	for _, op := range m.Queue {
		if op.before(kill) {
			m.emit(Refuse{ID: op.ID, Why: Superseded})
		} else {
			later = append(later, op)
		}
	}
	m.Queue = later
}

// next begins the first waiting operation unless work is going on.
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
	m.emit(Perform{ID: op.ID})
}

// begin begins work. Until the work ends, the machine starts no other work and ignores
// deaths, which the work detects itself.
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
	if e.Outcome.determinate() && (!e.Outcome.Other || m.storesSpec(e.Outcome)) {
		m.conclude(e.Outcome, m.attempted(e.Outcome))
	} else {
		m.resume()
	}
	m.emit(Save{}, End{ID: e.ID})
	m.next()
}

// decide changes the desired state according to the operation that ended. A failed operation
// does not change it, except that a kill that acted ends supervision.
func (m *machine) decide(o Outcome) {
	reached := o.Class == Done || o.Class == Already
	switch m.Op.Action {
	case Start, Restart, Supervise:
		if o.Class != Refused && (!o.Other || m.storesSpec(o)) {
			m.forgive() // an operator is handling the process
		}
		if reached || o.Replaced {
			m.setDesired(o)
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

// storesSpec reports whether the operation's spec is stored as the spec of the process. A start
// that found a supervised process running does not replace the stored spec. One that replaced
// the process does, also if it failed: the stored spec must not start its process again.
func (m *machine) storesSpec(o Outcome) bool {
	switch m.Op.Action {
	case Start, Restart, Supervise:
		return o.Class == Done || o.Replaced || o.Class == Already && m.Op.Policy.registers() && !m.supervised()
	case Stop, Kill, Release, Reload:
	}
	return false
}

func (m *machine) setDesired(o Outcome) {
	if !m.storesSpec(o) {
		if m.Desired == Down { // the caller wants the process running
			m.Desired = None
		}
		return
	}
	m.SpecStored, m.Policy = true, m.Op.Policy
	if !m.supervised() {
		m.Restarts = 0
	}
	m.Desired = None
	if m.Policy.registers() {
		m.Desired = Up
	}
	m.emit(StoreSpec{ID: m.Op.ID})
}

// attempted reports whether the operation counts as a failed attempt if the process does
// not run afterwards. A supervise operation starts nothing itself.
func (m *machine) attempted(o Outcome) bool {
	return m.Op.Action != Supervise && o.Class != Refused
}

// resume returns to the phase before the work, which did not change the process.
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
		m.emit(Search{Gen: m.Gen})
	}
}
