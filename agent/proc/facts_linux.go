package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// readPSS returns the process's proportional share of resident memory in bytes: a page
// shared by n processes counts 1/n.
func readPSS(id Identity) (int64, error) {
	text, err := os.ReadFile(procPath(id.PID, "smaps_rollup"))
	if err != nil {
		return 0, fmt.Errorf("shared memory of %s: %w", id, goneOr(err))
	}
	if !Alive(id) {
		return 0, fmt.Errorf("shared memory of %s: %w", id, ErrGone)
	}
	return lineValue(text, "Pss:") << 10, nil
}

// ReadHost reads the description of this host.
func ReadHost() (Host, error) {
	boot, err := bootID()
	if err != nil {
		return Host{}, err
	}
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Host{}, fmt.Errorf("read the memory size: %w", err)
	}
	_, offset := time.Now().Zone()
	return Host{
		BootID: boot, CPUs: onlineCPUs(), UTCOffset: time.Duration(offset) * time.Second,
		MemTotal: lineValue(meminfo, "MemTotal:") << 10, MemAvailable: lineValue(meminfo, "MemAvailable:"),
	}, nil
}

// lineValue returns the number in a line such as "MemTotal: 1024 kB"; 0 if the line is
// missing.
func lineValue(text []byte, name string) int64 {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) >= 2 && string(fields[0]) == name {
			if n, err := strconv.ParseInt(string(fields[1]), 10, 64); err == nil {
				return n
			}
		}
	}
	return 0
}

// onlineCPUs counts all online CPUs of the host, including CPUs that the agent may not use.
func onlineCPUs() int {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err == nil {
		if n := countCPUs(strings.TrimSpace(string(text))); n > 0 {
			return n
		}
	}
	return runtime.NumCPU()
}

// countCPUs returns the number of CPUs in a list such as "0-3,8,10-11"; 0 if the list is
// malformed.
func countCPUs(list string) int {
	count := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || to < from {
			return 0
		}
		count += to - from + 1
	}
	return count
}

// ReadCPUTime returns the CPU time of the host from the first line of /proc/stat.
func ReadCPUTime() (CPUTime, error) {
	var buf [256]byte
	n, err := readSmall("/proc/stat", buf[:])
	var t CPUTime
	if err == nil {
		t, err = parseCPUTime(buf[:n])
	}
	if err != nil {
		return CPUTime{}, fmt.Errorf("read the CPU time of the host: %w", err)
	}
	return t, nil
}

// parseCPUTime parses "cpu  user nice system idle iowait irq softirq steal …". It ignores
// the guest times after steal, because user and nice include them.
func parseCPUTime(text []byte) (t CPUTime, err error) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line)
	const idle, iowait, steal = 4, 5, 8
	if len(fields) <= idle || string(fields[0]) != "cpu" {
		return t, errors.New("/proc/stat does not begin with the sum of all CPUs")
	}
	for i, field := range fields[1:min(len(fields), steal+1)] {
		ticks, err := strconv.ParseUint(string(field), 10, 64)
		if err != nil {
			return t, fmt.Errorf("/proc/stat: %w", err)
		}
		t.Total += ticks
		if at := i + 1; at != idle && at != iowait {
			t.Busy += ticks
		}
	}
	return t, nil
}
