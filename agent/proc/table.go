package proc

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"
)

// Stat is one line of /proc/PID/stat. Times are clock ticks (see [TicksPerSecond]).
type Stat struct {
	PID      int
	Comm     string // kernel's name, at most 15 bytes, may contain spaces and ')'
	State    byte
	PPID     int
	PGID     int
	Session  int
	UTime    uint64
	STime    uint64
	Threads  int
	Start    uint64 // ticks since boot
	RSSPages int64
	Kernel   bool // a kernel thread
}

// dead reports whether state is the letter of a zombie or dead process. kill(pid, 0)
// succeeds for a zombie, although it no longer runs.
func dead(state byte) bool { return state == 'Z' || state == 'X' || state == 'x' }

// Indexes of the fields that follow the name, counted from the state letter.
const (
	fieldState   = 0
	fieldPPID    = 1
	fieldPGID    = 2
	fieldSession = 3
	fieldFlags   = 6
	fieldUTime   = 11
	fieldSTime   = 12
	fieldThreads = 17
	fieldStart   = 19
	fieldRSS     = 21
	statFields   = 22
)

// flagKernelThread is PF_KTHREAD of the kernel's task flags.
const flagKernelThread = 0x00200000

// parseStat parses the text of /proc/PID/stat. The name is everything between the
// first '(' and the last ')', because a program may be named "a) R (b".
func parseStat(text []byte) (Stat, error) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 1 || end < open {
		return Stat{}, fmt.Errorf("stat line without a name: %.40q", text)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(text[:open])))
	if err != nil {
		return Stat{}, fmt.Errorf("stat line without a pid: %.40q", text)
	}
	st := Stat{PID: pid, Comm: string(text[open+1 : end])}
	rest := text[end+1:]
	for i := range statFields {
		rest = bytes.TrimLeft(rest, " ")
		n := bytes.IndexAny(rest, " \n")
		if n < 0 {
			n = len(rest)
		}
		if n == 0 {
			return Stat{}, fmt.Errorf("stat line of pid %d ends after %d fields", pid, i)
		}
		if err := st.setField(i, rest[:n]); err != nil {
			return Stat{}, fmt.Errorf("stat line of pid %d, field %d: %w", pid, i, err)
		}
		rest = rest[n:]
	}
	return st, nil
}

func (st *Stat) setField(i int, text []byte) (err error) {
	switch i {
	case fieldState:
		st.State = text[0]
	case fieldPPID:
		st.PPID, err = strconv.Atoi(string(text))
	case fieldPGID:
		st.PGID, err = strconv.Atoi(string(text))
	case fieldSession:
		st.Session, err = strconv.Atoi(string(text))
	case fieldFlags:
		var flags uint64
		flags, err = strconv.ParseUint(string(text), 10, 64)
		st.Kernel = flags&flagKernelThread != 0
	case fieldUTime:
		st.UTime, err = strconv.ParseUint(string(text), 10, 64)
	case fieldSTime:
		st.STime, err = strconv.ParseUint(string(text), 10, 64)
	case fieldThreads:
		st.Threads, err = strconv.Atoi(string(text))
	case fieldStart:
		st.Start, err = strconv.ParseUint(string(text), 10, 64)
	case fieldRSS:
		st.RSSPages, err = strconv.ParseInt(string(text), 10, 64)
	}
	return err
}

// tick is the unit of Identity.Start.
const tick = time.Second / TicksPerSecond

func ticks(n uint64) time.Duration { return time.Duration(n) * tick }

// NowTicks returns the present time on the clock of Identity.Start.
func NowTicks() (uint64, error) {
	now, err := startClock()
	return uint64(now / tick), err
}

// Table is a snapshot of all processes of the host, in no particular order. Its
// processes may have ended since.
type Table struct {
	boot  string
	stats []Stat
}

// Tree returns the root and all its descendants, root first; nil if the root is not
// in the table.
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

// closure returns the seeds and their descendants, except the process with the pid barrier
// (0 = none) and the descendants that are reached only through it.
func (t *Table) closure(seeds []Stat, barrier int) []Stat {
	return t.families().descend(seeds, func(st Stat) bool { return st.PID == barrier })
}

// families links the rows of a table by parent: first is the index of a pid's first
// child, next that of its next sibling; indexes count from 1 and 0 ends the list.
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

// descend returns the seeds and their descendants, except the barred processes and the
// descendants that are reached only through them.
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

func (t *Table) identity(st Stat) Identity {
	return Identity{BootID: t.boot, PID: st.PID, Start: st.Start}
}

// processes converts rows to processes, without user, paths and arguments.
func (t *Table) processes(stats []Stat) []Process {
	found := make([]Process, 0, len(stats))
	for _, st := range stats {
		found = append(found, processOf(t.boot, st))
	}
	return found
}

// agentAncestry returns the pids of the agent and its ancestors, which must not be
// signalled.
func agentAncestry() map[int]bool {
	line := map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !line[pid]; {
		line[pid] = true
		st, err := ReadStat(pid)
		if err != nil {
			break
		}
		pid = st.PPID
	}
	return line
}

// relate completes a process table of Windows, where a process keeps the pid of its parent even
// if that pid is reused. It removes parents that are younger than their child. It sets PGID to
// the oldest ancestor below the agent, which is the agent's command that started the process.
func relate(stats []Stat, agent int) {
	rows := make(map[int]*Stat, len(stats))
	for i := range stats {
		rows[stats[i].PID] = &stats[i]
	}
	for i := range stats {
		if parent, ok := rows[stats[i].PPID]; !ok || parent.Start > stats[i].Start || parent.PID == stats[i].PID {
			stats[i].PPID = 0
		}
	}
	for i := range stats {
		top := &stats[i]
		// Two processes that started in the same tick could be parents of each other.
		for steps := 0; top.PPID != 0 && top.PPID != agent && steps < len(stats); steps++ {
			top = rows[top.PPID]
		}
		stats[i].PGID = top.PID
	}
}
