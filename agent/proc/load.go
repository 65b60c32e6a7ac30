package proc

// Load is how much of a host is in use, in percent of all of it.
type Load struct {
	CPU    float64
	Memory float64
}

// CPUTime is the time of all CPUs of a host together since it started, in clock
// ticks.
type CPUTime struct{ Busy, Total uint64 }

// LoadSince is the load of the host now: memory at this moment, CPU since the
// earlier reading. The zero CPUTime makes it the average since the host
// started. Readings less than a second of CPU time apart say nothing; then fresh is
// false.
func (h Host) LoadSince(earlier, now CPUTime) (l Load, fresh bool) {
	if h.MemTotal > 0 {
		l.Memory = percent(h.MemTotal-h.MemAvailable<<10, h.MemTotal)
	}
	total := int64(now.Total - earlier.Total)
	if now.Total < earlier.Total || total < TicksPerSecond {
		return l, false
	}
	l.CPU = percent(int64(now.Busy-min(earlier.Busy, now.Busy)), total)
	return l, true
}

// percent is at most 100: the parts of a reading are not of one moment.
func percent(part, whole int64) float64 {
	return float64(min(max(part, 0), whole)) / float64(whole) * 100
}
