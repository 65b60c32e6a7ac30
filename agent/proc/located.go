package proc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// located is one process with the paths by which a search finds it. What it is
// besides is read of those alone whose paths are right.
type located struct {
	pid      int
	exe, cwd string // "" when unreadable
	hidden   bool   // neither may be read
	managed  bool   // see Finder.Managed: the paths were not read
}

// searchPause is the number of processes after which a reading of the host lets
// other goroutines run. One that makes system calls all the time is preempted
// every 10 ms only, and the death of another process should be known sooner.
const searchPause = 32

// readLocated reads what a search may find: no zombies, no kernel threads, not
// pid 1. It costs about 6 µs for each process of the host that is not managed.
func readLocated(managed map[int]bool) ([]located, error) {
	pids, err := readPIDs()
	if err != nil {
		return nil, err
	}
	rows := make([]located, 0, len(pids))
	for i, pid := range pids {
		if i%searchPause == 0 {
			runtime.Gosched()
		}
		if managed[pid] {
			rows = append(rows, located{pid: pid, managed: true})
			continue
		}
		row, err := locate(pid)
		if exhausted(err) {
			return nil, err
		}
		if err == nil && pid != 1 {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// locate reads the paths of one process. Zombies and kernel threads, which have
// no executable, count as gone.
func locate(pid int) (located, error) {
	exe, exeErr := exePath(pid)
	if errors.Is(exeErr, ErrGone) {
		return located{}, ErrGone
	}
	cwd, cwdErr := workDir(pid)
	if err := errors.Join(exeErr, cwdErr); exhausted(err) {
		return located{}, fmt.Errorf("read the paths of pid %d: %w", pid, err)
	}
	hidden := errors.Is(exeErr, os.ErrPermission) && errors.Is(cwdErr, os.ErrPermission)
	return located{pid: pid, exe: exe, cwd: cwd, hidden: hidden}, nil
}
