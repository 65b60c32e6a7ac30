package limits

import "time"

// Metric is what a limit is about.
type Metric string

// The metrics; the words are shown to users.
const (
	CPU    Metric = "cpu"
	Memory Metric = "memory"
)

// Process names the main process of a tree within one boot of the host.
type Process struct {
	PID   int
	Start uint64 // when it started, in any unit that grows
}

// Tree is one managed process with its descendants, as it was measured.
// Percentages are of the whole host.
type Tree struct {
	Key       string
	Namespace string
	Main      Process
	Age       time.Duration // of the main process

	// CPU is the mean since the reading before; CPUKnown is false if this is
	// the first one of this process.
	CPU      float64
	CPUKnown bool
	Memory   float64 // now

	CPULimit    float64 // 0 and everything above 100 are no limit
	MemoryLimit float64

	// Deferred says that the process must be left alone for now, say because an
	// operation is at work on it. It is judged all the same.
	Deferred bool
}

// limit is the tree's own for a metric.
func (t *Tree) limit(m Metric) float64 {
	if m == CPU {
		return t.CPULimit
	}
	return t.MemoryLimit
}

// Pool is a limit that all trees of one namespace share.
type Pool struct {
	Namespace, ID string
	CPULimit      float64 // percent of the host; 0 and everything above 100 are no limit
	MemoryLimit   float64

	// By limit, a member counts by its usage in relation to its own limit, so
	// that one with a large limit is spared longer; else by its usage alone.
	CPUByLimit    bool
	MemoryByLimit bool
}

func (p *Pool) limit(m Metric) float64 {
	if m == CPU {
		return p.CPULimit
	}
	return p.MemoryLimit
}

func (p *Pool) byLimit(m Metric) bool {
	if m == CPU {
		return p.CPUByLimit
	}
	return p.MemoryByLimit
}

// Reading is all trees of the host at one moment.
type Reading struct {
	At     time.Duration // on a clock that goes on while the host sleeps
	Period time.Duration // at which readings are meant to come
	Trees  []Tree
	Pools  []Pool
}

// limited reports whether a limit limits anything.
func limited(limit float64) bool { return limit > 0 && limit <= 100 }
