package proc

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// reapTick is the interval of checks without SIGCHLD: several ended children may raise
	// only one signal.
	reapTick = 5 * time.Second

	// reapPause is the first pause before a retry, if an ended child of this package
	// precedes orphans in the kernel's list. The pause doubles up to reapTick.
	reapPause = time.Millisecond
)

// ReapOrphans reaps the orphans that the kernel made children of this process, until ctx
// ends. Only the process with PID 1 of a container needs it: no other process has such
// children, and orphans that are not reaped remain in the process table and seem alive.
//
// It does not reap programs that this package started, whose exit codes os/exec reads. No
// other package of this program may start programs.
func ReapOrphans(ctx context.Context) {
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	retry := reapPause
	for wait := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-died:
		case <-time.After(wait):
		}
		if ownChildren.reapOthers() {
			wait, retry = reapTick, reapPause
		} else {
			wait, retry = retry, min(2*retry, reapTick)
		}
	}
}

// reapOthers reaps all ended children that this package did not start. It returns false if
// an ended child of this package may hide others from deadChild.
func (c *children) reapOthers() bool {
	// A child whose pid is not in pids yet must not be mistaken for an orphan.
	c.starting.Lock()
	defer c.starting.Unlock()
	for {
		switch pid := deadChild(); {
		case pid <= 0:
			return true
		case c.has(pid):
			return false
		default:
			if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != nil && !errors.Is(err, unix.EINTR) {
				return true // it is gone
			}
		}
	}
}

// deadChild returns the pid of an ended child without reaping it; 0 if there is
// none.
func deadChild() int {
	var info unix.Siginfo
	_, err := retryEINTR(func() (int, error) {
		return 0, unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	})
	if err != nil {
		return 0 // this process has no children
	}
	// In Siginfo the fields specific to a signal follow the named fields, aligned to a
	// pointer. For SIGCHLD the first specific field is the pid.
	const header = unsafe.Offsetof(info.Code) + unsafe.Sizeof(info.Code)
	const word = unsafe.Sizeof(uintptr(0))
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), (header+word-1)/word*word))) //nolint:gosec // the kernel's layout, see above
}
