package proc

// KillScope says which processes besides the descendants of the root belong to
// a tree, and which never do.
type KillScope struct {
	// Key is the value of the KeyMark environment variable that strays carry:
	// what left the tree by setsid and a double fork. "" = do not look.
	Key string

	// LedOnly leaves out the root's session unless the root leads it: whatever
	// one start script has started shares a session.
	LedOnly bool

	// Protected reports pids that must survive, such as the processes of other
	// keys and the agent's own commands. Their descendants survive too, and a
	// session with one of them is not killed as a session. The agent, its
	// ancestors and pid 1 are always protected. nil = no others.
	Protected func(pid int) bool
}

func (s KillScope) protects(pid int) bool { return s.Protected != nil && s.Protected(pid) }

// spared are the protected processes with all their descendants. A root (0 =
// none) that descends from one, like a program started by a command that still
// runs, is not spared for that.
func (s KillScope) spared(table *Table, root int) map[int]bool {
	var seeds []Stat
	barrier := root
	for _, st := range table.stats {
		if s.protects(st.PID) {
			seeds = append(seeds, st)
			if st.PID == root {
				barrier = 0
			}
		}
	}
	spared := map[int]bool{}
	for _, st := range table.closure(seeds, barrier) {
		spared[st.PID] = true
	}
	return spared
}
