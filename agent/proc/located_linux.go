package proc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// searchPause is the number of processes after which a reading of the host lets
// other goroutines run. One that makes system calls all the time is preempted
// every 10 ms only, and the death of another process should be known sooner.
const searchPause = 32

// readLocated reads what a search may find: no zombies, no kernel threads, not
// pid 1. It costs about 6 µs for each process of the host.
func readLocated() ([]located, error) {
	pids, err := readPIDs()
	if err != nil {
		return nil, err
	}
	rows := make([]located, 0, len(pids))
	for i, pid := range pids {
		if i%searchPause == 0 {
			runtime.Gosched()
		}
		if pid == 1 {
			continue
		}
		exe, exeErr := exePath(pid)
		if errors.Is(exeErr, ErrGone) { // zombies and kernel threads have none either
			continue
		}
		cwd, cwdErr := workDir(pid)
		if err := errors.Join(exeErr, cwdErr); exhausted(err) {
			return nil, fmt.Errorf("read the paths of pid %d: %w", pid, err)
		}
		hidden := errors.Is(exeErr, os.ErrPermission) && errors.Is(cwdErr, os.ErrPermission)
		rows = append(rows, located{pid: pid, exe: exe, cwd: cwd, hidden: hidden})
	}
	return rows, nil
}
