// Package hostcheck looks for what endangers the processes of this host, or
// what the agent must be able to do for them: a unit whose restart kills them, a
// first process that does not reap, a journal that is gone after a reboot. It
// changes nothing, and finds nothing on systems other than Linux.
package hostcheck

import (
	"context"
	"time"
)

// Finding is something about this host that somebody should change.
type Finding struct {
	Check string `json:"check"` // one of the words below
	What  string `json:"what"`  // how it is
	Why   string `json:"why"`   // what may happen
	Do    string `json:"do"`    // what makes it safe
}

// Checks, by the word in their findings.
const (
	KillMode    = "kill_mode"    // stopping the agent kills its processes
	UnitLimits  = "unit_limits"  // the agent's unit limits its processes
	UnitSandbox = "unit_sandbox" // the agent's unit hides parts of the host from its processes
	Reaping     = "reaping"      // dead processes stay in the process table
	PIDFD       = "pidfd"        // signals may hit the successor of a process
	HiddenProcs = "hidden_procs" // processes of others cannot be seen
	FileLimit   = "file_limit"   // the agent may not open files enough
	DataFolder  = "data_folder"  // the journal is not safe where it is
	Clock       = "clock"        // this host does not know the time
)

// Host says where to look.
type Host struct {
	// PID is the agent's; 0 = none runs, its unit is looked for by name.
	PID     int
	DataDir string // may not exist yet
}

// Unit returns what is wrong with the systemd unit alone, nil if nothing or if
// there is none. It runs systemctl if the agent is in a unit.
func Unit(ctx context.Context, pid int) []Finding { return checkUnit(ctx, pid) }

// Limit bounds how long Check takes when the host's own programs hang.
const Limit = 20 * time.Second

// Check returns what it finds, nil if nothing. It runs systemctl and a shell,
// and waits for them until ctx ends or for [Limit].
func Check(ctx context.Context, h Host) []Finding {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	return check(ctx, h)
}
