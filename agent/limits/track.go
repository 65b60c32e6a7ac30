package limits

import "time"

const (
	// streak is how many readings of memory in a row must be over the limit.
	// Memory does not average out, and it does not jitter either.
	streak = 3

	// rearm is the part of its limit below which a figure must have fallen to be
	// found over it once more.
	rearm = 0.9

	// maxGap is how many periods may lie between two readings that belong
	// together: the host slept, or the agent was not let run.
	maxGap = 3
)

// track is what is remembered of one tree or pool from reading to reading.
type track struct {
	at      time.Duration // of the latest reading
	begun   bool          // there was one
	cpu     history
	memory  float64
	streaks int // readings in a row with memory over the limit
	acted   map[Metric]bool
	quiet   map[Metric]time.Duration // nothing is found before
}

func newTrack() *track {
	return &track{acted: map[Metric]bool{}, quiet: map[Metric]time.Duration{}}
}

// add takes over one reading of what the limits are about.
func (t *track) add(r *Reading, window time.Duration, u usage) {
	span := r.At - t.at
	switch {
	case !t.begun:
	case span <= 0 || span > maxGap*r.Period:
		*t = *newTrack()
	case u.cpuKnown:
		t.cpu.add(span, u.cpu, window, r.Period)
	}
	t.at, t.begun, t.memory = r.At, true, u.memory
	if limited(u.memoryLimit) && u.memory > u.memoryLimit {
		t.streaks++
	} else {
		t.streaks = 0
	}
	for metric, limit := range map[Metric]float64{CPU: u.cpuLimit, Memory: u.memoryLimit} {
		if t.value(metric) < rearm*limit {
			t.acted[metric] = false
		}
	}
}

// usage is one reading of a tree or a pool.
type usage struct {
	cpu, memory           float64
	cpuKnown              bool
	cpuLimit, memoryLimit float64
}

// value is the figure that is compared with a limit.
func (t *track) value(m Metric) float64 {
	if m == CPU {
		return t.cpu.mean()
	}
	return t.memory
}

// over reports whether the limit has been exceeded for so long that it is no
// accident, and nothing has been done about it yet.
func (t *track) over(m Metric, limit float64, window time.Duration) bool {
	if !limited(limit) || t.acted[m] || t.at < t.quiet[m] {
		return false
	}
	if m == Memory {
		return t.streaks >= streak
	}
	return t.cpu.covers(window) && t.cpu.mean() > limit && t.cpu.last() > limit
}

// history is the CPU usage over a window that moves along.
type history struct {
	spans  []span
	length time.Duration // of all
	slack  time.Duration // readings never come exactly in time
}

type span struct {
	length  time.Duration
	percent float64
}

// add appends a span and drops those that the window does not need any more.
func (h *history) add(length time.Duration, percent float64, window, period time.Duration) {
	h.slack = period / 2
	h.spans = append(h.spans, span{length, percent})
	h.length += length
	for len(h.spans) > 1 && h.length-h.spans[0].length >= window-h.slack {
		h.length -= h.spans[0].length
		h.spans = h.spans[1:]
	}
}

func (h *history) covers(window time.Duration) bool {
	return len(h.spans) > 0 && h.length >= window-h.slack
}

func (h *history) mean() float64 {
	if h.length <= 0 {
		return 0
	}
	var sum float64
	for _, s := range h.spans {
		sum += s.percent * float64(s.length)
	}
	return sum / float64(h.length)
}

func (h *history) last() float64 { return h.spans[len(h.spans)-1].percent }
