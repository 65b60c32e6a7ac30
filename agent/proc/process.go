package proc

import (
	"errors"
	"fmt"
	"syscall"
	"time"
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

// Alive reports whether the identified process still runs. Zombies do not. When
// it cannot be told, say because the agent has no file descriptors left, the
// answer is yes: nobody must take a process for stopped without proof.
func Alive(id Identity) bool {
	_, err := statOf(id)
	return !errors.Is(err, ErrGone)
}

// statOf reads the numbers of exactly the identified process; ErrGone when it
// ended or when the pid belongs to another one.
func statOf(id Identity) (Stat, error) {
	boot, err := bootID()
	if err != nil {
		return Stat{}, err
	}
	if id.BootID != boot || id.PID <= 0 {
		return Stat{}, ErrGone
	}
	st, err := readStat(id.PID)
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

// Death is the end of a process that was watched.
type Death struct {
	Identity
	Exit
	At time.Time // when the watcher was notified
}

// Exit is how a process ended. The zero value says that it is not known: only
// a parent hears of it for certain.
type Exit struct {
	Known  bool
	Code   int            // 0 if Signal is set
	Signal syscall.Signal // 0 when it exited
}

// SignalName is the name of the signal, for example "SIGSEGV"; "" without one.
func (e Exit) SignalName() string {
	if e.Signal == 0 {
		return ""
	}
	return signalName(e.Signal)
}

// maxGenerations bounds the way from a process to its ancestors.
const maxGenerations = 64

// Kin reports whether the younger process descends from the older one, or has
// the same parent and session. False as well if either is gone.
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
		if st, err = readStat(st.PPID); err != nil {
			return false
		}
	}
	return false
}

// Stands reports whether the process runs (see [Alive]), and whether it was
// stopped by a signal or a debugger.
func Stands(id Identity) (alive, suspended bool) {
	st, err := statOf(id)
	return !errors.Is(err, ErrGone), st.State == 'T' || st.State == 't'
}
