package proc

import (
	"errors"
	"fmt"
	"os"
)

// located is one process with the paths by which a search finds it.
type located struct {
	Stat
	exe, cwd string // "" when unreadable
	hidden   bool   // neither may be read
}

// readLocated reads what a search may find: no zombies, no kernel threads, not
// pid 1. It costs about 15 µs for each process of the host.
func readLocated() ([]located, error) {
	table, err := ReadTable()
	if err != nil {
		return nil, err
	}
	rows := make([]located, 0, len(table.stats))
	for _, st := range table.stats {
		if dead(st.State) || st.PID == 1 || st.Kernel {
			continue
		}
		row := located{Stat: st}
		var exeErr, cwdErr error
		row.exe, exeErr = exePath(st.PID)
		row.cwd, cwdErr = workDir(st.PID)
		if err := errors.Join(exeErr, cwdErr); exhausted(err) {
			return nil, fmt.Errorf("read the paths of pid %d: %w", st.PID, err)
		}
		row.hidden = errors.Is(exeErr, os.ErrPermission) && errors.Is(cwdErr, os.ErrPermission)
		rows = append(rows, row)
	}
	return rows, nil
}
