package limits

import "time"

const (
	// streak is the number of consecutive memory readings over the limit that make a
	// breach. Memory is not averaged, since it fluctuates less than CPU.
	streak = 3

	// rearm is the fraction of a limit below which usage must fall before another breach.
	rearm = 0.9

	// maxGap is the maximum number of periods between two comparable readings; a
	// longer gap means that the host was suspended or the agent not scheduled.
	maxGap = 3
)

// track is the history of one tree or pool.
type track struct {
	at      time.Duration // time of the latest reading
	begun   bool          // true after the first reading
	cpu     history
	memory  float64
	streaks int // number of consecutive readings with memory over the limit
	acted   map[Metric]bool
	quiet   map[Metric]time.Duration // time before which there is no breach, by metric
}

func newTrack() *track {
	return &track{acted: map[Metric]bool{}, quiet: map[Metric]time.Duration{}}
}

// add records the usage in a reading, of a tree or the sum of a pool.
func (t *track) add(r *Reading, window time.Duration, u Tree) {
	span := r.At - t.at
	switch {
	case !t.begun:
	case span <= 0 || span > maxGap*r.Period:
		*t = *newTrack()
	case u.CPUKnown:
		t.cpu.add(span, u.CPU, window, r.Period)
	}
	t.at, t.begun, t.memory = r.At, true, u.Memory
	if isLimit(u.MemoryLimit) && u.Memory > u.MemoryLimit {
		t.streaks++
	} else {
		t.streaks = 0
	}
	for _, metric := range []Metric{CPU, Memory} {
		if t.value(metric) < rearm*u.limit(metric) {
			t.acted[metric] = false
		}
	}
}

// value returns the usage that is compared with the limit.
func (t *track) value(m Metric) float64 { return of(m, t.cpu.mean(), t.memory) }

// over reports whether the limit is exceeded long enough for a breach, and no termination
// or dismissal suppresses the breach.
func (t *track) over(m Metric, limit float64, window time.Duration) bool {
	if !isLimit(limit) || t.acted[m] || t.at < t.quiet[m] {
		return false
	}
	if m == Memory {
		return t.streaks >= streak
	}
	return t.cpu.covers(window) && t.cpu.mean() > limit && t.cpu.last() > limit
}

// history is the CPU usage over a sliding window.
type history struct {
	spans  []span
	length time.Duration // sum of the lengths of spans
	slack  time.Duration // tolerance, since readings are never exactly periodic
}

type span struct {
	length  time.Duration
	percent float64
}

// add appends a span and removes the spans outside of the window.
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
