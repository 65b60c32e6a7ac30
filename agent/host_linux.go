package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// elapsedClock returns a clock that, unlike Go's monotonic clock, includes the time that
// the machine is suspended.
func elapsedClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration {
		var ts unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil { // forbidden by a sandbox, then at every call
			return time.Since(start)
		}
		return time.Duration(ts.Nano())
	}
}

func machineID() string { return firstLine("/etc/machine-id") }

func bootID() string { return firstLine("/proc/sys/kernel/random/boot_id") }

// kernelRelease returns the release of the kernel; "" if unknown.
func kernelRelease() string { return firstLine("/proc/sys/kernel/osrelease") }

// firstLine returns the first line of a file; "" if it cannot be read.
func firstLine(path string) string {
	text, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}

func inodeOf(path string) (uint64, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("the system does not report the inode of " + path)
	}
	return stat.Ino, nil
}
