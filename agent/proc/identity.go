package proc

import (
	"errors"
	"fmt"
)

var (
	// ErrUnsupported is returned by everything in this package that touches
	// processes on a system other than Linux and Windows.
	ErrUnsupported = errors.New("supervising processes needs Linux or Windows")

	// ErrGone says that the process of an identity does not exist any more:
	// it ended, is a zombie, or its pid belongs to another process now.
	ErrGone = errors.New("process is gone")
)

// Environment variables that mark every process a control command starts.
// They survive setsid and reparenting, so they find what a daemon left behind.
const (
	KeyMark = "PROCFLEET_KEY"
	OpMark  = "PROCFLEET_OP"
)

// Identity names one process for ever: a pid alone is reused, and a start time
// converted to the wall clock moves whenever the clock is set. The zero value
// means "no process". Identities are compared with ==.
type Identity struct {
	BootID string `json:"boot_id"` // kernel's id of this boot
	PID    int    `json:"pid"`     // thread group id
	Start  uint64 `json:"start"`   // start time as the kernel keeps it, in 1/TicksPerSecond: since boot, on Windows since 1970
}

// IsZero reports whether the identity names no process.
func (id Identity) IsZero() bool { return id == Identity{} }

// String is for messages: "pid 4437 (start 123456)".
func (id Identity) String() string { return fmt.Sprintf("pid %d (start %d)", id.PID, id.Start) }

// Process is one running process as it was seen at one moment.
type Process struct {
	Identity
	PPID    int
	PGID    int
	Session int
	UID     int    // effective user id; -1 when unreadable
	State   byte   // R S D T Z … as in /proc/PID/stat
	Name    string // base name of the executable, else the kernel's 15 byte name
	Exe     string // resolved path without the " (deleted)" mark; "" when unreadable
	Cwd     string // "" when unreadable
	Args    []string
}
