package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/procfleet/procfleet/agent/proc"
)

// The figures of a process are 0 without /proc, or if the process has ended.

// cpuTime returns the processor time of a process, user and system.
func cpuTime(pid int) time.Duration {
	stat, _ := proc.ReadStat(pid)                                                   // the zero Stat after an error
	return time.Duration(stat.UTime+stat.STime) * time.Second / proc.TicksPerSecond //nolint:gosec // ticks of a process: overflows after 292 years
}

// residentSize returns the resident memory of a process in bytes.
func residentSize(pid int) int {
	stat, _ := proc.ReadStat(pid)
	return int(stat.RSSPages) * os.Getpagesize()
}

// threads returns the number of threads of a process.
func threads(pid int) int {
	stat, _ := proc.ReadStat(pid)
	return stat.Threads
}

// peakRSS returns the maximum resident memory of a process in bytes.
func peakRSS(pid int) int {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // nil after an error
	_, rest, _ := bytes.Cut(data, []byte("\nVmHWM:"))
	text, _, _ := bytes.Cut(bytes.TrimSpace(rest), []byte(" "))
	kib, _ := strconv.Atoi(string(text))
	return kib << 10
}

// forgetPeakRSS resets the value of [peakRSS], if the kernel supports the reset.
func forgetPeakRSS(pid int) {
	const resetPeak = "5"
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(resetPeak), 0)
}
