package proc

import (
	"fmt"
	"os"
	"strconv"
)

// ReadTable reads the numbers of every process of the host, about 5 µs each.
// Processes that end meanwhile, or that /proc does not show, are left out.
func ReadTable() (*Table, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	table := &Table{boot: boot}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		st, err := readStat(pid)
		if exhausted(err) {
			return nil, fmt.Errorf("read pid %d: %w", pid, err)
		}
		if err == nil {
			table.stats = append(table.stats, st)
		}
	}
	return table, nil
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
