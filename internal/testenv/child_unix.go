//go:build unix

package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Freeze sends SIGSTOP and waits until every thread is stopped, because kill returns before
// the threads stop. Send SIGCONT to resume the process.
func (c *Child) Freeze(tb testing.TB) {
	tb.Helper()
	c.Signal(syscall.SIGSTOP)
	Eventually(tb, freezeTimeout, func() bool { return stopped(tb, c.PID()) }, c.cmd.Path+" is stopped")
}

const freezeTimeout = 10 * time.Second

// stopped reports whether /proc shows every thread of a process as stopped.
func stopped(tb testing.TB, pid int) bool {
	tb.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		tb.Fatalf("no threads of process %d: it has ended, or this is not Linux", pid)
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		// The state follows the parenthesized name, which may contain any character.
		if end := bytes.LastIndexByte(stat, ')'); err != nil || !bytes.HasPrefix(stat[end+1:], []byte(" T")) {
			return false
		}
	}
	return true
}
