//go:build !linux

package proc

import (
	"errors"
	"fmt"
	"os"
)

// readLocated reads what a search may find.
func readLocated() ([]located, error) {
	table, err := ReadTable()
	if err != nil {
		return nil, err
	}
	rows := make([]located, 0, len(table.stats))
	for _, st := range table.stats {
		if dead(st.State) || st.Kernel {
			continue
		}
		row := located{pid: st.PID}
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
