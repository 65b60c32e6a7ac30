package proc

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Capacity is the reference of limits in percent: 100 % are the CPUs and memory of the
// host, or of the agent's control groups if these allow less.
type Capacity struct {
	CPUs   float64
	Memory int64 // bytes
}

// PercentOf returns memory, in bytes, in percent of the capacity's memory.
func (c Capacity) PercentOf(memory int64) float64 {
	if c.Memory <= 0 {
		return 0
	}
	return float64(memory) / float64(c.Memory) * 100
}

// TreeUsage is the usage of a process and its tree at one moment.
type TreeUsage struct {
	Age       time.Duration // time since the start of the root
	Processes []Identity    // members of the tree, the root first

	CPU      float64 // percent of the capacity since the previous measurement
	CPUKnown bool    // true if the previous measurement had the root

	RSS           int64 // bytes; a page shared by n processes of the tree counts n times
	MemoryPercent float64
}

// Usage is one measurement of several trees by one reading of the host.
type Usage struct {
	At        time.Duration // time of the measurement, on the clock of Identity.Start
	Capacity  Capacity
	Processes int // number of processes of the host
	Trees     map[Identity]TreeUsage
}

// UsageMeter measures trees repeatedly. It is not safe for concurrent use. The zero
// value has no measurement yet.
type UsageMeter struct {
	at    time.Duration       // time of the latest measurement
	ticks map[Identity]uint64 // CPU time of all processes of trees in the latest measurement
}

// Measure reads the host once, which takes about 5 µs per process. Roots that are gone are
// missing in the result. others reports the pids of managed processes; a tree does not
// include other managed processes and their descendants.
//
// A tree is the root with its descendants and, if it leads a session, the members of
// the session, such as workers that lost their parent. CPU time is summed over the
// live processes since the previous measurement, so that the sum does not fall when
// a member ends.
func (m *UsageMeter) Measure(roots []Identity, others func(pid int) bool) (Usage, error) {
	capacity, capacityErr := ReadCapacity()
	now, clockErr := startClock()
	table, tableErr := ReadTable()
	if err := errors.Join(capacityErr, clockErr, tableErr); err != nil {
		return Usage{}, fmt.Errorf("measure processes: %w", err)
	}
	return m.compute(table, capacity, now, roots, others), nil
}

// compute returns the usage of the roots' trees from a table of the host.
func (m *UsageMeter) compute(table *Table, capacity Capacity, now time.Duration, roots []Identity, others func(int) bool) Usage {
	u := Usage{At: now, Capacity: capacity, Processes: len(table.stats), Trees: map[Identity]TreeUsage{}}
	ticks := map[Identity]uint64{}
	for root, members := range table.trees(roots, others) {
		u.Trees[root] = m.account(table, capacity, now, members)
		for _, st := range members {
			ticks[table.identity(st)] = st.UTime + st.STime
		}
	}
	m.at, m.ticks = now, ticks
	return u
}

// account returns the usage of one tree. The first member is the root.
func (m *UsageMeter) account(table *Table, capacity Capacity, now time.Duration, members []Stat) TreeUsage {
	_, measured := m.ticks[table.identity(members[0])]
	tree := TreeUsage{Age: max(0, now-ticks(members[0].Start)), CPUKnown: measured && now > m.at}
	var used uint64
	for _, st := range members {
		id := table.identity(st)
		tree.Processes = append(tree.Processes, id)
		tree.RSS += st.RSS()
		used += m.since(id, st.UTime+st.STime)
	}
	tree.MemoryPercent = capacity.PercentOf(tree.RSS)
	if tree.CPUKnown && capacity.CPUs > 0 {
		tree.CPU = ticks(used).Seconds() / (now - m.at).Seconds() / capacity.CPUs * 100
	}
	return tree
}

// since returns the CPU time that a process has used since the previous measurement. now is
// its total CPU time. It returns 0 for a process that existed at the previous measurement
// but was in no tree.
func (m *UsageMeter) since(id Identity, now uint64) uint64 {
	before, known := m.ticks[id]
	switch {
	case known:
		return now - min(before, now)
	case ticks(id.Start) >= m.at:
		return now // started after the previous measurement
	}
	return 0
}

// trees returns the live members of each root's tree, the root first.
func (t *Table) trees(roots []Identity, others func(pid int) bool) map[Identity][]Stat {
	sessions := map[int][]Stat{}
	for _, root := range roots {
		sessions[root.PID] = nil
	}
	own := map[Identity]Stat{}
	for _, st := range t.stats {
		if dead(st.State) {
			continue
		}
		if session, wanted := sessions[st.Session]; wanted {
			sessions[st.Session] = append(session, st)
		}
		if _, wanted := sessions[st.PID]; wanted {
			own[t.identity(st)] = st
		}
	}
	families, self, trees := t.families(), os.Getpid(), map[Identity][]Stat{}
	for _, root := range roots {
		st, lives := own[root]
		if !lives {
			continue
		}
		seeds := []Stat{st}
		if st.Session == st.PID {
			seeds = append(seeds, sessions[st.PID]...)
		}
		trees[root] = families.descend(seeds, func(member Stat) bool {
			return dead(member.State) || member.PID == self ||
				member.PID != root.PID && (member.Start < root.Start || others(member.PID))
		})
	}
	return trees
}

// TreePSS returns the memory of several processes in bytes, in which a page shared by n
// processes counts 1/n; on Windows their private memory. Processes that have ended count 0.
// It is far more expensive than RSS: use it to confirm that a tree exceeds a limit.
func TreePSS(processes []Identity) (int64, error) {
	var sum int64
	for _, id := range processes {
		pss, err := readPSS(id)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return 0, err
		}
		sum += pss
	}
	return sum, nil
}
