package proc

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

var (
	// ErrUnsupported is returned on systems other than Linux and Windows.
	ErrUnsupported = errors.New("supervising processes needs Linux or Windows")

	// ErrGone is returned for an identity whose process no longer exists: it ended,
	// is a zombie, or its pid was reused.
	ErrGone = errors.New("process is gone")
)

// Environment variables that mark the processes started by control commands. They survive
// setsid and reparenting, so that daemons can be found by them.
const (
	KeyMark = "PROCFLEET_KEY"
	OpMark  = "PROCFLEET_OP"
)

// Identity identifies one process uniquely: pids are reused, and a start time on the
// wall clock changes when the clock is set. The zero value means "no process".
// Identities are compared with ==.
type Identity struct {
	BootID string `json:"boot_id"` // kernel's id of this boot
	PID    int    `json:"pid"`     // thread group id
	Start  uint64 `json:"start"`   // kernel's start time in 1/TicksPerSecond seconds since boot, on Windows since 1970
}

// IsZero reports whether the identity names no process.
func (id Identity) IsZero() bool { return id == Identity{} }

// String returns text for messages: "pid 4437 (start 123456)".
func (id Identity) String() string { return fmt.Sprintf("pid %d (start %d)", id.PID, id.Start) }

// Process is one observation of a running process.
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

// Alive reports whether the identified process runs; a zombie does not. If the host cannot
// be read, for example for lack of file descriptors, it returns true: without proof a
// process is not considered stopped.
func Alive(id Identity) bool {
	_, err := statOf(id)
	return !errors.Is(err, ErrGone)
}

// statOf reads the stat of exactly the identified process, or returns ErrGone.
func statOf(id Identity) (Stat, error) {
	boot, err := bootID()
	if err != nil {
		return Stat{}, err
	}
	if id.BootID != boot || id.PID <= 0 {
		return Stat{}, ErrGone
	}
	st, err := ReadStat(id.PID)
	if err != nil {
		return Stat{}, err
	}
	if st.Start != id.Start || dead(st.State) {
		return Stat{}, ErrGone
	}
	return st, nil
}

func processOf(boot string, st Stat) Process {
	return Process{
		Identity: Identity{BootID: boot, PID: st.PID, Start: st.Start},
		PPID:     st.PPID, PGID: st.PGID, Session: st.Session,
		UID: -1, State: st.State, Name: st.Comm,
	}
}

// Death is the end of a watched process.
type Death struct {
	Identity
	Exit
	At time.Time // time at which the watcher was notified
}

// Exit describes the end of a process. The zero value means unknown: with few exceptions
// the kernel reports an exit only to the parent process.
type Exit struct {
	Known  bool
	Code   int            // exit code; 0 if Signal is set
	Signal syscall.Signal // signal that ended the process; 0 if the process exited
}

// SignalName returns the name of the signal, for example "SIGSEGV"; "" if no signal ended
// the process.
func (e Exit) SignalName() string {
	if e.Signal == 0 {
		return ""
	}
	return signalName(e.Signal)
}

// maxGenerations bounds the number of ancestors that Kin checks.
const maxGenerations = 64

// Kin reports whether the younger process descends from the older one, or both have the
// same parent and session. It returns false if either process is gone.
func Kin(older, younger Identity) bool {
	elder, err := statOf(older)
	if err != nil {
		return false
	}
	st, err := statOf(younger)
	if err != nil {
		return false
	}
	if st.PPID == elder.PPID && st.Session == elder.Session {
		return true
	}
	for range maxGenerations {
		switch {
		case st.PPID == elder.PID:
			return true
		case st.PPID <= 1:
			return false
		}
		if st, err = ReadStat(st.PPID); err != nil {
			return false
		}
	}
	return false
}

// RunState reports whether the process runs (see [Alive]), and whether it is stopped by
// a signal or a debugger.
func RunState(id Identity) (alive, suspended bool) {
	st, err := statOf(id)
	return !errors.Is(err, ErrGone), st.State == 'T' || st.State == 't'
}
