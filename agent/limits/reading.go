package limits

import (
	"cmp"
	"slices"
	"time"
)

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

// Breach is a limit that was exceeded and the process that has to go for it.
type Breach struct {
	Metric Metric
	Value  float64 // what was used, percent of the host
	Limit  float64
	// Window is what Value is the mean over; of memory, how long it has been
	// over the limit at least.
	Window time.Duration

	Key  string // of the process that has to go
	Main Process

	Pool    *Pool    // whose limit it is; nil = the process's own
	Members []Member // of the pool, the one that has to go first
}

// Member is how one member of a pool stood when one of them had to go. The one
// with the highest score goes.
type Member struct {
	Key   string
	Main  Process
	Usage float64 // percent of the host
	Limit float64 // its own; 0 = none
	Score float64
	// Minor members use so little of what the pool uses that they go only if
	// there are no others.
	Minor bool
}

// minorPart is the part of a pool's usage below which a member is minor.
const minorPart = 0.05

// rank gives the members their scores and puts the one that has to go first:
// minor members come last, then the score decides, then who started last.
func rank(members []Member, byLimit bool) []Member {
	var total float64
	for _, m := range members {
		total += m.Usage
	}
	members = slices.Clone(members)
	for i := range members {
		m := &members[i]
		m.Minor = m.Usage < minorPart*total
		m.Score = m.Usage
		if byLimit {
			own := m.Limit
			if !limited(own) {
				own = 100
			}
			m.Score = m.Usage / own
		}
	}
	slices.SortFunc(members, func(a, b Member) int {
		if a.Minor != b.Minor {
			if a.Minor {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(b.Main.Start, a.Main.Start), cmp.Compare(a.Key, b.Key))
	})
	return members
}

// Confirm judges a breach of a memory limit once more by better figures: the
// sum over a tree counts pages that its processes share several times. memory
// has, by key, what the trees really use; who is not in it keeps what was
// measured. It reports false if the limit is not exceeded then. Another member
// of a pool may have to go than before.
func (b Breach) Confirm(memory map[string]float64) (Breach, bool) {
	if b.Metric != Memory {
		return b, true
	}
	if b.Pool == nil {
		if better, known := memory[b.Key]; known {
			b.Value = better
		}
		return b, b.Value > b.Limit
	}
	members := slices.Clone(b.Members)
	b.Value = 0
	for i := range members {
		if better, known := memory[members[i].Key]; known {
			members[i].Usage = better
		}
		b.Value += members[i].Usage
	}
	b.accuse(rank(members, b.Pool.byLimit(b.Metric)))
	return b, b.Value > b.Limit
}

// accuse makes the first of ranked members the one that has to go.
func (b *Breach) accuse(ranked []Member) {
	b.Members, b.Key, b.Main = ranked, ranked[0].Key, ranked[0].Main
}
