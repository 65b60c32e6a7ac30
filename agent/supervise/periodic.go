package supervise

// maxOverlaps is the number of consecutive skipped runs after which an event is emitted. A
// run is skipped if the previous run has not ended.
const maxOverlaps = 3

// registers reports whether an operation with this policy makes the process supervised.
func (p Policy) registers() bool { return p.Resident || p.Periodic }

// Ticks reports whether the run of a tick can begin now. If it cannot, the tick waits until
// its grace period ends (see [Timetable.Due]).
func (s State) Ticks(now Moment) bool {
	return s.supervised() && s.Policy.Periodic && !s.Paused && !s.recovering && now >= s.notBefore &&
		(s.Work == Idle && s.Phase != Uncertain && s.Phase != Exited || s.Work == AutoStarting)
}

// awaitsTick reports whether a periodic process waits for its next tick. It needs no sweep
// meanwhile: the tick searches for the process.
func (s State) awaitsTick() bool {
	return s.Policy.Periodic && s.Phase == Stopped && !s.recovering
}

// ticked begins a run, or skips it if the previous run has not ended.
func (m *machine) ticked() {
	if !m.Ticks(m.now) {
		return
	}
	if m.Work == AutoStarting || m.Phase == Running {
		m.overlap()
		return
	}
	m.Overlaps = 0
	m.begin(AutoStarting)
	m.Phase = Starting
	m.emit(AutoStart{})
}

func (m *machine) overlap() {
	m.Overlaps++
	if m.Overlaps == maxOverlaps {
		m.emit(Emit{Notice: Overlapping, Main: m.Main})
	}
}

// awaitTick waits for the next tick. The end of a run is not a failure; only a failed start is.
func (m *machine) awaitTick(failed bool) {
	m.Phase = Stopped
	if !failed {
		m.Failures = 0
		return
	}
	m.Failures++
	if m.Failures == max(1, m.Policy.Retries) {
		m.emit(Emit{Notice: RunsFailed})
	}
}
