// Package hostcheck checks the configuration of this host for dangers to its
// processes and to the agent, for example a unit whose restart kills them, an init
// that does not reap, or a data folder that is lost at a reboot. It changes nothing,
// and finds nothing on systems other than Linux.
package hostcheck

import (
	"context"
	"time"
)

// Finding is one dangerous property of this host.
type Finding struct {
	Check string `json:"check"` // one of the words below
	What  string `json:"what"`  // the present state
	Why   string `json:"why"`   // what may happen
	Do    string `json:"do"`    // the remedy
}

// The checks.
const (
	KillMode    = "kill_mode"    // stopping the agent kills its processes
	UnitLimits  = "unit_limits"  // the agent's unit limits its processes
	UnitSandbox = "unit_sandbox" // the agent's unit hides parts of the host from its processes
	Reaping     = "reaping"      // dead processes stay in the process table
	PIDFD       = "pidfd"        // signals may hit the successor of a process
	HiddenProcs = "hidden_procs" // processes of other accounts are hidden
	FileLimit   = "file_limit"   // the agent may open too few files
	DataFolder  = "data_folder"  // the file system of the journal is not durable
	Clock       = "clock"        // the clock of this host is not set
)

// Host is the agent to check.
type Host struct {
	PID     int    // 0 = it does not run, its unit is found by name
	DataDir string // may not exist yet
}

// Unit returns the findings about the agent's systemd unit alone. It runs systemctl
// if the agent is in a unit.
func Unit(ctx context.Context, pid int) []Finding { return checkUnit(ctx, pid) }

// Limit bounds the time of Check when the host's programs hang.
const Limit = 20 * time.Second

// Check returns all findings. It runs systemctl and a shell, and blocks until they
// end, ctx ends, or for [Limit].
func Check(ctx context.Context, h Host) []Finding {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	return check(ctx, h)
}
