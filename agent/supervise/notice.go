package supervise

import "time"

// noticeEvery is the least time between events about a process in phase [Uncertain].
const noticeEvery = time.Hour

// pause suspends automatic starts and terminations, or resumes them and runs an overdue
// start at once. Each start searches for the process before it acts.
func (m *machine) pause(on bool) {
	m.Paused = on
	switch {
	case on && m.Work == AutoStarting:
		m.emit(Yield{})
	case !on && m.overdue:
		m.supersede()
		m.arm(0)
	}
}

// pidFileConflict decides which of two living processes is supervised: the known one, unless
// the pid file names its replacement.
func (m *machine) pidFileConflict(e PidFileConflict) {
	if m.Work != Idle || m.Phase != Running || e.Main == (Identity{}) || e.Main != m.Main || e.Other == m.Main {
		return
	}
	switch {
	case e.Other == Identity{}:
		m.forgetConflict()
	case e.Kin:
		m.supersede()
		m.emitSuccessor(e.Other)
		m.running(e.Other)
		m.emit(Save{})
	case e.Other != m.Conflict:
		m.Conflict, m.conflictSince, m.conflictReported = e.Other, m.now, false
	case !m.conflictReported && m.now.since(m.conflictSince) >= m.Policy.ConflictWait:
		m.conflictReported = true
		m.emit(Emit{Notice: ConflictPersists, Main: m.Main, Other: e.Other})
	}
}

func (m *machine) forgetConflict() {
	m.Conflict, m.conflictSince, m.conflictReported = Identity{}, 0, false
}

// emitSuccessor emits an event if main is another process than the supervised one.
func (m *machine) emitSuccessor(main Identity) {
	switch {
	case m.Policy.Periodic: // a run is begun by the schedule or an operation: nothing to report
	case !m.supervised() || main == (Identity{}) || main == m.Main:
	case m.Main == Identity{}:
		m.emit(Emit{Notice: ExternalStart, Main: main})
	default:
		m.emit(Emit{Notice: PIDChanged, Main: main, Other: m.Main})
	}
}

// suspended records whether a signal has stopped the process. The agent does not resume the
// process: the sender of the signal had a reason.
func (m *machine) suspended(e Suspended) {
	if e.Main == (Identity{}) || e.Main != m.Main || e.On == m.Suspended {
		return
	}
	m.Suspended = e.On
	if e.On {
		m.emit(Emit{Notice: StoppedBySignal, Main: m.Main})
	}
}

func (m *machine) emitIndeterminate() {
	if !m.supervised() || m.now < m.nextNotice {
		return
	}
	m.nextNotice = m.now + Moment(noticeEvery)
	m.emit(Emit{Notice: StillIndeterminate, Main: m.Main})
}
