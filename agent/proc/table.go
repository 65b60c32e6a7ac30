package proc

import (
	"os"
	"slices"
)

// Table is one pass over all processes of the host, in no particular order.
// It is a snapshot: what it names may have ended since.
type Table struct {
	boot  string
	stats []Stat
}

// Tree returns the root and all its descendants, root first; nothing when the
// root is not in the table.
func (t *Table) Tree(root Identity) []Stat {
	if root.BootID != t.boot {
		return nil
	}
	for _, st := range t.stats {
		if st.PID == root.PID && st.Start == root.Start && !dead(st.State) {
			return t.closure([]Stat{st}, 0)
		}
	}
	return nil
}

// closure adds to the seeds everything that descends from them, but not the
// barrier (a pid, 0 = none) and what is only reached through it.
func (t *Table) closure(seeds []Stat, barrier int) []Stat {
	return t.families().descend(seeds, func(st Stat) bool { return st.PID == barrier })
}

// families are the rows of a table by their parents: first has the place of a
// pid's one child, next that of its further ones; 0 ends the row. Places count
// from 1.
type families struct {
	stats []Stat
	first map[int]int32
	next  []int32
}

func (t *Table) families() families {
	f := families{stats: t.stats, first: map[int]int32{}, next: make([]int32, len(t.stats)+1)}
	for i := range t.stats {
		place, parent := int32(i+1), t.stats[i].PPID
		f.next[place] = f.first[parent]
		f.first[parent] = place
	}
	return f
}

// descend adds to the seeds all that descends from them, but neither what is
// barred nor what is only reached through that.
func (f families) descend(seeds []Stat, barred func(Stat) bool) []Stat {
	seen := map[int]bool{}
	var tree []Stat
	for queue := slices.Clone(seeds); len(queue) > 0; queue = queue[1:] {
		st := queue[0]
		if seen[st.PID] || barred(st) {
			continue
		}
		seen[st.PID] = true
		tree = append(tree, st)
		for place := f.first[st.PID]; place != 0; place = f.next[place] {
			queue = append(queue, f.stats[place-1])
		}
	}
	return tree
}

// identity is the identity of one row.
func (t *Table) identity(st Stat) Identity {
	return Identity{BootID: t.boot, PID: st.PID, Start: st.Start}
}

// processes turns rows into processes without the expensive parts.
func (t *Table) processes(stats []Stat) []Process {
	found := make([]Process, 0, len(stats))
	for _, st := range stats {
		found = append(found, processOf(t.boot, st))
	}
	return found
}

// agentLine returns the pids of the agent and of its ancestors: signalling one
// of them would end the agent or what keeps it running.
func agentLine() map[int]bool {
	line := map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !line[pid]; {
		line[pid] = true
		st, err := readStat(pid)
		if err != nil {
			break
		}
		pid = st.PPID
	}
	return line
}
