package limits

import (
	"cmp"
	"slices"
	"time"
)

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
