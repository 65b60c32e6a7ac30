package supervise

// maxOverlaps is how many runs in a row are left out, because the one before
// has not ended, before that is told.
const maxOverlaps = 3

// registers reports whether a process is looked after once it was started.
func (p Policy) registers() bool { return p.Resident || p.Periodic }

// Ticks reports whether a tick can be served now. One that cannot waits for as
// long as it may be late.
func (s State) Ticks(now Moment) bool {
	return s.supervised() && s.Policy.Periodic && !s.Held && !s.recovering && now >= s.notBefore &&
		(s.Work == Idle && s.Phase != Uncertain && s.Phase != Exited || s.Work == AutoStarting)
}

// rests reports whether a periodic process waits for its next tick, which will
// look for it.
func (s State) rests() bool {
	return s.Policy.Periodic && s.Phase == Stopped && !s.recovering
}

// ticked begins a run, unless the one before has not ended.
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

// overlap leaves a run out.
func (m *machine) overlap() {
	m.Overlaps++
	if m.Overlaps == maxOverlaps {
		m.emit(Tell{News: Overlapping, Main: m.Main})
	}
}

// await waits for the next tick. That a run has ended is no failure: only a
// start that fails is.
func (m *machine) await(failed bool) {
	m.Phase = Stopped
	if !failed {
		m.Failures = 0
		return
	}
	m.Failures++
	if m.Failures == max(1, m.Policy.Retries) {
		m.emit(Tell{News: RunsFailed})
	}
}
