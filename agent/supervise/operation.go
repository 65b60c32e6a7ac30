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

// begin makes the machine busy: from here to the end of the work nothing else
// is started, and deaths are the work's own to notice.
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
	if e.Outcome.tells() && (!e.Outcome.Other || m.keeps(e.Outcome)) {
		m.conclude(e.Outcome, m.attempted(e.Outcome))
	} else {
		m.resume()
	}
	m.emit(Save{}, End{ID: e.ID})
	m.next()
}

// decide changes what is wanted of the process, by the operation that ended.
// A failed operation changes nothing, except that a kill that was tried says
// for good that the process is not wanted.
func (m *machine) decide(o Outcome) {
	reached := o.Class == Done || o.Class == Already
	switch m.Op.Action {
	case Start, Restart, Supervise:
		if o.Class != Refused && (!o.Other || m.keeps(o)) {
			m.forgive() // somebody looks after it
		}
		if reached {
			m.want(o)
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

// keeps reports whether the operation's spec becomes the process's own. A
// start that found the process running leaves the spec of a supervised
// process alone.
func (m *machine) keeps(o Outcome) bool {
	switch m.Op.Action {
	case Start, Restart, Supervise:
		return o.Class == Done || o.Class == Already && m.Op.Policy.registers() && !m.supervised()
	case Stop, Kill, Release, Reload:
	}
	return false
}

func (m *machine) want(o Outcome) {
	if !m.keeps(o) {
		if m.Desired == Down { // it runs, as was asked for
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

// attempted reports whether the operation that ended counts as a failed
// attempt when the process is not there afterwards. Supervising starts
// nothing itself.
func (m *machine) attempted(o Outcome) bool {
	return m.Op.Action != Supervise && o.Class != Refused
}

// resume goes back to where the process stood before work that did nothing
// to it.
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
