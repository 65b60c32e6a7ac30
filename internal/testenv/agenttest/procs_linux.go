package agenttest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/procfleet/procfleet/internal/testenv"
)

// Env returns the environment that marks a process as part of the host. At the end of the
// test all marked processes are killed.
func (h *Host) Env() map[string]string {
	return map[string]string{markVariable: h.mark, "AGENTTEST_LEASH": h.Data}
}

// Marked returns the live processes that belong to the host, except agents.
func (h *Host) Marked() []int {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		h.tb.Error(err)
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(filepath.Base(entry)); err == nil && h.owns(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// owns reports whether a process is alive and belongs to the host.
func (h *Host) owns(pid int) bool {
	return bytes.Contains(environ(pid), []byte(markVariable+"="+h.mark+"\x00")) && Alive(pid)
}

// environ returns the environment of a process, nil if it cannot be read. It is empty for
// kernel threads, and for a moment while a process executes another program.
func environ(pid int) []byte {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil
	}
	return env
}

// killAll kills all processes that belong to the host.
func (h *Host) killAll() {
	h.tb.Helper()
	testenv.Eventually(h.tb, Patience, func() bool {
		left := h.Marked()
		for _, pid := range left {
			// The mark was just read; the kernel does not reuse the pid so soon.
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(left) == 0
	}, "no process of the test is left")
}

// Alive reports whether a process exists and is not a zombie.
func Alive(pid int) bool {
	state := State(pid)
	return state != "" && state != "Z" && state != "X"
}

// State returns the state letter of a process in /proc, or "" if the process does not exist.
func State(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')'):]), " ")
	return after[:1]
}

// End kills a process that the test started and waits until the process has ended.
func (h *Host) End(pid int) {
	h.tb.Helper()
	h.Signal(pid, syscall.SIGKILL)
	testenv.Eventually(h.tb, Patience, func() bool { return !Alive(pid) }, fmt.Sprintf("pid %d has ended", pid))
}

// Signal sends a signal to a process that the test started.
func (h *Host) Signal(pid int, s syscall.Signal) {
	h.tb.Helper()
	if pid < 2 {
		h.tb.Fatalf("pid %d", pid)
	}
	if err := syscall.Kill(pid, s); err != nil {
		h.tb.Fatal(err)
	}
}
