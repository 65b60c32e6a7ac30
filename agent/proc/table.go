package proc

// Table is one pass over all processes of the host, in no particular order.
// It is a snapshot: what it names may have ended since.
type Table struct {
	boot  string
	stats []Stat
}

// Tree returns the root and all its descendants, root first; nothing when the
// root is not in the table. Their numbers are the scope of a limit.
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
	children := make(map[int][]Stat, len(t.stats))
	for _, st := range t.stats {
		children[st.PPID] = append(children[st.PPID], st)
	}
	seen := make(map[int]bool, len(seeds))
	var tree []Stat
	for queue := seeds; len(queue) > 0; queue = queue[1:] {
		st := queue[0]
		if seen[st.PID] || st.PID == barrier {
			continue
		}
		seen[st.PID] = true
		tree = append(tree, st)
		queue = append(queue, children[st.PID]...)
	}
	return tree
}

// identity is the identity of one row.
func (t *Table) identity(st Stat) Identity {
	return Identity{BootID: t.boot, PID: st.PID, Start: st.Start}
}
