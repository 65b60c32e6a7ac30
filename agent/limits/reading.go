package limits

import (
	"cmp"
	"slices"
	"time"
)

// Metric is the measured resource of a limit.
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

// Tree is the measured usage of one managed process with its descendants, in percent
// of the whole host.
type Tree struct {
	Key       string
	Namespace string
	Main      Process
	Age       time.Duration // of the main process

	CPU      float64 // mean since the previous reading
	CPUKnown bool    // false in the first reading of the process
	Memory   float64

	CPULimit    float64 // 0 and values above 100 are no limit
	MemoryLimit float64

	// Deferred is true while the process must not be taken down, for example during
	// an operation. It is measured nevertheless.
	Deferred bool
}

func (t *Tree) limit(m Metric) float64 {
	if m == CPU {
		return t.CPULimit
	}
	return t.MemoryLimit
}

// Pool is a limit that all trees of one namespace share.
type Pool struct {
	Namespace, ID string
	CPULimit      float64 // percent of the host; 0 and values above 100 are no limit
	MemoryLimit   float64

	// ByLimit ranks members by their usage relative to their own limit, so that a
	// member with a large limit is spared longer; otherwise by their usage.
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

// Reading is one measurement of all trees of the host.
type Reading struct {
	At     time.Duration // on a monotonic clock that counts suspended time
	Period time.Duration // intended interval of readings
	Trees  []Tree
	Pools  []Pool
}

// isLimit reports whether a value is a limit.
func isLimit(limit float64) bool { return limit > 0 && limit <= 100 }

// Breach is an exceeded limit and the process to take down for it.
type Breach struct {
	Metric Metric
	Value  float64 // usage in percent of the host
	Limit  float64
	// Window is the time over which CPU usage was averaged, or the minimum time for
	// which memory usage exceeded the limit.
	Window time.Duration

	Key  string // of the process to take down
	Main Process

	Pool    *Pool    // of an exceeded pool limit; nil = the process's own limit
	Members []Member // of the pool, in the order of taking down
}

// Member is one member of a pool that exceeds its limit. The member with the highest
// score is taken down.
type Member struct {
	Key   string
	Main  Process
	Usage float64 // percent of the host
	Limit float64 // its own; 0 = none
	Score float64
	// Minor members use less than 5 % of the pool's usage. They are taken down only
	// if no other member remains.
	Minor bool
}

// minorPart is the part of a pool's usage below which a member is minor.
const minorPart = 0.05

// rank sets the members' scores and sorts them in the order of taking down: minor
// members last, then by score, then the process that started last.
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
			if !isLimit(own) {
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

// Confirm checks a breach of a memory limit with exact values: the sum over a tree
// counts shared pages several times. memory has the exact usage by key; other trees
// keep the measured value. It reports false if the limit is not exceeded by these
// values. The order of a pool's members may change.
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
	b.selectVictim(rank(members, b.Pool.byLimit(b.Metric)))
	return b, b.Value > b.Limit
}

// selectVictim selects the first of the ranked members for the take-down.
func (b *Breach) selectVictim(ranked []Member) {
	b.Members, b.Key, b.Main = ranked, ranked[0].Key, ranked[0].Main
}
