package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// clockTick is the unit in which Linux tells processor time to programs, on
// every architecture.
const clockTick = 10 * time.Millisecond

// cpuTime is the processor time, user and system, that a process has used;
// 0 where there is no /proc.
func cpuTime(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, second, may contain anything; nothing after it has a ')'.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	const user, system = 14 - 3, 15 - 3 // counted from 1, and from the third
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

// peakRSS is the most memory, in bytes, that a process has had resident, and
// residentSize what it has; 0 where there is no /proc.
func peakRSS(pid int) int      { return statusFigure(pid, "VmHWM:") << 10 }
func residentSize(pid int) int { return statusFigure(pid, "VmRSS:") << 10 }

// threads is how many a process has; 0 where there is no /proc.
func threads(pid int) int { return statusFigure(pid, "Threads:") }

// statusFigure is a number of a process's status; sizes are in KiB.
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

// forgetPeakRSS lets [peakRSS] begin anew. Where that cannot be done the peak
// is that of the process's whole life.
func forgetPeakRSS(pid int) {
	const resetPeak = "5"
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(resetPeak), 0)
}
