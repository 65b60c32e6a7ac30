package proc

import (
	"syscall"
	"time"
)

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
