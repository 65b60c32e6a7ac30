package limits

import (
	"cmp"
	"slices"
	"time"
)

// Metric is the measured resource of a limit.
type Metric string

// The metrics. Their values are shown to users.
const (
	CPU    Metric = "cpu"
	Memory Metric = "memory"
)

func of[T any](m Metric, cpu, memory T) T {
	if m == CPU {
		return cpu
	}
	return memory
}

// Process identifies the main process of a tree within one boot of the host.
type Process struct {
	PID   int
	Start uint64 // start time in any increasing unit
}

// Tree is the measured usage of one managed process with its descendants, in percent
// of the whole host.
type Tree struct {
	Key       string
	Namespace string
	Main      Process
	Age       time.Duration // age of the main process

	CPU      float64 // mean usage since the previous reading
	CPUKnown bool    // false in the first reading of the process
	Memory   float64

	CPULimit    float64 // percent of the host; 0 and values above 100 are no limit
	MemoryLimit float64

	// Deferred is true while the process must not be terminated, for example during an
	// operation. Its usage is measured nevertheless.
	Deferred bool
}

func (t *Tree) limit(m Metric) float64 { return of(m, t.CPULimit, t.MemoryLimit) }

// Pool is a limit that all trees of one namespace share.
type Pool struct {
	Namespace, ID string
	CPULimit      float64 // percent of the host; 0 and values above 100 are no limit
	MemoryLimit   float64

	// CPUByLimit and MemoryByLimit rank members by their usage relative to their own limit,
	// so that a member with a large limit is spared longer. If false, members are ranked by
	// their usage.
	CPUByLimit    bool
	MemoryByLimit bool
}

func (p *Pool) limit(m Metric) float64 { return of(m, p.CPULimit, p.MemoryLimit) }

func (p *Pool) byLimit(m Metric) bool { return of(m, p.CPUByLimit, p.MemoryByLimit) }

// Reading is one measurement of all trees of the host.
type Reading struct {
	At     time.Duration // time of the reading, on a monotonic clock that includes suspended time
	Period time.Duration // intended interval of readings
	Trees  []Tree
	Pools  []Pool
}

func isLimit(limit float64) bool { return limit > 0 && limit <= 100 }

// Breach is an exceeded limit and the process to terminate for it.
type Breach struct {
	Metric Metric
	Value  float64 // usage in percent of the host
	Limit  float64
	// Window is the time over which CPU usage was averaged, or the minimum time for
	// which memory usage exceeded the limit.
	Window time.Duration

	Key  string // registration key of the process to terminate
	Main Process

	Pool    *Pool    // pool whose limit is exceeded; nil = the process's own limit is exceeded
	Members []Member // members of the pool, in the order of termination
}

// Member is one member of a pool that exceeds its limit. The member with the highest score
// is terminated.
type Member struct {
	Key   string
	Main  Process
	Usage float64 // percent of the host
	Limit float64 // limit of the process itself, in percent of the host; 0 = none
	Score float64
	// Minor is true for a member that uses less than 5 % of the pool's usage. It is terminated
	// only if no other member remains.
	Minor bool
}

// minorPart is the fraction of the pool's usage below which a member is minor.
const minorPart = 0.05

// rank sets the members' scores and returns the members in the order of termination: minor
// members last, then by descending score, then by descending start time.
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

// Confirm checks a breach of a memory limit with exact values, since the sum over a tree
// counts shared pages several times. memory is the exact usage by key, in percent of the host;
// trees without an exact value retain the measured one. Confirm returns the updated breach, in
// which the order of a pool's members may differ, and false if the limit is not exceeded.
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

// selectVictim selects the first ranked member as the process to terminate.
func (b *Breach) selectVictim(ranked []Member) {
	b.Members, b.Key, b.Main = ranked, ranked[0].Key, ranked[0].Main
}
