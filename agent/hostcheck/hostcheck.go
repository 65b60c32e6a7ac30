// Package hostcheck detects configurations of this host that endanger the agent and its
// processes, for example a unit whose restart kills the processes, an init that does not
// reap, or a data folder that is lost at a reboot. It changes nothing. On systems other
// than Linux it returns no findings.
package hostcheck

import (
	"context"
	"time"
)

// Finding is one dangerous property of this host.
type Finding struct {
	Check       string `json:"check"` // one of the constants below
	Problem     string `json:"what"`
	Consequence string `json:"why"`
	Remedy      string `json:"do"`
}

// The checks.
const (
	KillMode    = "kill_mode"    // stopping the agent kills its processes
	UnitLimits  = "unit_limits"  // the agent's unit limits its processes
	UnitSandbox = "unit_sandbox" // the agent's unit hides parts of the host from its processes
	Reaping     = "reaping"      // dead processes stay in the process table
	PIDFD       = "pidfd"        // a signal may hit another process that has reused the pid
	HiddenProcs = "hidden_procs" // processes of other accounts are hidden
	FileLimit   = "file_limit"   // the agent may open too few files
	DataFolder  = "data_folder"  // the file system of the journal is not durable
	Clock       = "clock"        // the clock of this host is not set
)

// Host describes the agent to check.
type Host struct {
	PID     int    // pid of the agent; 0 = it does not run, and its unit is found by name
	DataDir string // data folder, which may not exist yet; "" = not checked
}

// Check returns all findings. It runs systemctl and a shell. It blocks until these programs
// or ctx end, at most for 20 s.
func Check(ctx context.Context, h Host) []Finding {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return check(ctx, h)
}
