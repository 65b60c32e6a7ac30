package proc

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// ReadCPUTime reads the first line of /proc/stat.
func ReadCPUTime() (CPUTime, error) {
	var buf [256]byte
	n, err := readSmall("/proc/stat", buf[:])
	if err != nil {
		return CPUTime{}, fmt.Errorf("read the CPU time of the host: %w", err)
	}
	t, err := parseCPUTime(buf[:n])
	if err != nil {
		return CPUTime{}, fmt.Errorf("read the CPU time of the host: %w", err)
	}
	return t, nil
}

// parseCPUTime reads "cpu  user nice system idle iowait irq softirq steal …".
// The guests' time that follows is part of user and nice.
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
