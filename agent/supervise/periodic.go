package supervise

// maxOverlaps is the number of consecutive runs that are skipped, because the previous run
// has not ended, after which an event is emitted.
const maxOverlaps = 3

// registers reports whether a process is supervised after it was started.
func (p Policy) registers() bool { return p.Resident || p.Periodic }

// Ticks reports whether a tick can be served now. One that cannot waits as long as it may
// be late.
func (s State) Ticks(now Moment) bool {
	return s.supervised() && s.Policy.Periodic && !s.Held && !s.recovering && now >= s.notBefore &&
		(s.Work == Idle && s.Phase != Uncertain && s.Phase != Exited || s.Work == AutoStarting)
}

// rests reports whether a periodic process waits for its next tick, which searches for it.
func (s State) rests() bool {
	return s.Policy.Periodic && s.Phase == Stopped && !s.recovering
}

// ticked begins a run, unless the previous one has not ended.
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

// overlap skips a run.
func (m *machine) overlap() {
	m.Overlaps++
	if m.Overlaps == maxOverlaps {
		m.emit(Emit{Notice: Overlapping, Main: m.Main})
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
		m.emit(Emit{Notice: RunsFailed})
	}
}
