package proc

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
)

// ReadTable reads the stat of every process of the host, in about 5 µs each. It omits
// processes that end meanwhile or that /proc hides.
func ReadTable() (*Table, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	pids, err := readPIDs()
	if err != nil {
		return nil, err
	}
	table := &Table{boot: boot}
	for i, pid := range pids {
		if i%searchPause == 0 {
			runtime.Gosched()
		}
		st, err := ReadStat(pid)
		if exhausted(err) {
			return nil, fmt.Errorf("read pid %d: %w", pid, err)
		}
		if err == nil {
			table.stats = append(table.stats, st)
		}
	}
	return table, nil
}

// readPIDs returns the pids of the host that /proc shows.
func readPIDs() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func (t *Table) group(leader Identity) []Stat {
	return t.ledBy(leader, func(st *Stat) int { return st.PGID })
}

// session returns the live processes of a command's session; the leader may have ended. The
// session id is not reused while the session has members.
func (t *Table) session(leader Identity) []Stat {
	return t.ledBy(leader, func(st *Stat) int { return st.Session })
}

// ledBy returns the live processes whose group or session id, read by number, is the leader's
// pid; nil if that pid was reused.
func (t *Table) ledBy(leader Identity, number func(*Stat) int) []Stat {
	if leader.IsZero() || leader.BootID != t.boot {
		return nil
	}
	var members []Stat
	for _, st := range t.stats {
		if st.PID == leader.PID && st.Start != leader.Start {
			return nil
		}
		if number(&st) == leader.PID && st.Start >= leader.Start && !dead(st.State) {
			members = append(members, st)
		}
	}
	return members
}
