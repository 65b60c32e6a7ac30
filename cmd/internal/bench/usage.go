package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// clockTick is the unit of processor time in /proc, which is the same on all architectures.
const clockTick = 10 * time.Millisecond

// cpuTime returns the processor time of a process, user and system, or 0 without
// /proc.
func cpuTime(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The second field, the name, may contain any characters; later fields have no ')'.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	const user, system = 14 - 3, 15 - 3 // proc(5) numbers fields from 1; pid and name are cut off
	if len(fields) <= system {
		return 0
	}
	ticks := 0
	for _, field := range [][]byte{fields[user], fields[system]} {
		n, err := strconv.Atoi(string(field))
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick
}

// peakRSS returns the maximum resident memory of a process in bytes. residentSize returns
// its current resident memory. Both return 0 without /proc.
func peakRSS(pid int) int      { return statusFigure(pid, "VmHWM:") << 10 }
func residentSize(pid int) int { return statusFigure(pid, "VmRSS:") << 10 }

// threads returns the number of threads of a process, or 0 without /proc.
func threads(pid int) int { return statusFigure(pid, "Threads:") }

// statusFigure returns the number in the line name of /proc/PID/status. Sizes are in KiB.
func statusFigure(pid int, name string) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, found := bytes.Cut(data, []byte("\n"+name))
	fields := bytes.Fields(rest)
	if !found || len(fields) == 0 {
		return 0
	}
	n, err := strconv.Atoi(string(fields[0]))
	if err != nil {
		return 0
	}
	return n
}

// forgetPeakRSS resets the value of [peakRSS], if the kernel supports the reset.
func forgetPeakRSS(pid int) {
	const resetPeak = "5"
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(resetPeak), 0)
}
