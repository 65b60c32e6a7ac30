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
	// reapTick is how often orphans are looked for without a signal: several
	// deaths may make one.
	reapTick = 5 * time.Second

	// reapPause is how long one of our own that has ended, and hides orphans
	// behind it, is left to whoever waits for it. It doubles up to reapTick.
	reapPause = time.Millisecond
)

// ReapOrphans reaps the processes that the kernel handed over to this one when
// their parents ended, until ctx ends. Whoever is PID 1 of a container must:
// nobody else can, and a process that was not reaped stays in the process
// table, seemingly alive. Elsewhere there are none.
//
// Programs that this package started are left alone: their exit codes belong
// to those who wait for them. No other part of the program may start any.
func ReapOrphans(ctx context.Context) {
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := reapPause; ; {
		select {
		case <-ctx.Done():
			return
		case <-died:
		case <-timer.C:
		}
		if ours.reapOthers() {
			pause = reapPause
			timer.Reset(reapTick)
			continue
		}
		timer.Reset(pause)
		pause = min(2*pause, reapTick)
	}
}

// reapOthers reaps all dead children but our own. It reports false when one of
// our own stood before those that may be left.
func (c *children) reapOthers() bool {
	// A child that is just being started must not be taken for an orphan.
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
				return true // it is gone; nobody else reaps, so there is nothing to gain
			}
		}
	}
}

// deadChild returns the pid of a child that has ended and leaves it as it is;
// 0 if there is none.
func deadChild() int {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0 // no children at all
		}
		break
	}
	// Behind the fields that Siginfo names stands what belongs to the signal,
	// aligned to a pointer; of SIGCHLD first the pid.
	const header = unsafe.Offsetof(info.Code) + unsafe.Sizeof(info.Code)
	const word = unsafe.Sizeof(uintptr(0))
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), (header+word-1)/word*word))) //nolint:gosec // the kernel's layout, see above
}
