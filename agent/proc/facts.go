package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxFactsCmdline is the maximum size of Facts.Cmdline, in bytes.
const maxFactsCmdline = 4 << 10

// Facts are the attributes of one process in a status. Percentages are shares of the
// whole host: 100 is all CPUs, or all memory.
type Facts struct {
	Identity Identity
	Name     string // base name of the executable
	Cmdline  string // arguments joined by spaces, at most 4 KiB of valid UTF-8
	State    string // state letter, such as R, S, D or T
	Threads  int

	UserTime   time.Duration // CPU time in user mode since the start
	SystemTime time.Duration // CPU time in the kernel since the start

	RSS        int64   // resident memory in bytes
	RSSPercent float64 // RSS in percent of Host.MemTotal

	CPUPercent    float64 // CPU usage since the earlier sample; without one CPUPercentAll
	CPUPercentAll float64 // average CPU usage since the start

	Elapsed time.Duration // time since the start, including suspended time, in whole seconds

	// StartedAt is the start time by the present wall clock. It changes when the clock is
	// set: store and show the first value of an identity.
	StartedAt time.Time

	Sample Sample // argument prev of the next Describe
}

// Suspended reports whether a signal or a debugger has stopped the process.
func (f *Facts) Suspended() bool { return f.State == "T" || f.State == "t" }

// Sample is a process's CPU time at one moment.
type Sample struct {
	Identity Identity
	CPU      time.Duration // user and system time
	At       time.Duration // time of the sample, on the clock of Identity.Start
}

// Host describes this host.
type Host struct {
	BootID       string
	CPUs         int   // online
	MemTotal     int64 // bytes
	MemAvailable int64 // kB available to new programs, as estimated by the kernel
	UTCOffset    time.Duration
}

// percentOfHost returns a CPU time in percent of the time that all CPUs had during elapsed;
// 0 if no time passed.
func percentOfHost(cpu, elapsed time.Duration, cpus int) float64 {
	if elapsed <= 0 || cpus <= 0 || cpu <= 0 {
		return 0
	}
	return float64(cpu) / float64(elapsed) / float64(cpus) * 100
}

// CPU returns the process's CPU time.
func (st Stat) CPU() time.Duration { return ticks(st.UTime) + ticks(st.STime) }

// RSS returns the resident memory in bytes, shared pages included.
func (st Stat) RSS() int64 { return st.RSSPages * int64(os.Getpagesize()) }

// Describe reads the facts of a process. prev is the sample of an earlier Describe of the
// same process; with the zero Sample, CPUPercent is the average since the start. It does
// not wait between two measurements. If the process has ended, it returns ErrGone.
func Describe(id Identity, host Host, prev Sample) (Facts, error) {
	f, err := Measure(id, host, prev)
	if err != nil {
		return f, err
	}
	if exe, err := exePath(id.PID); err == nil {
		f.Name = filepath.Base(exe)
	}
	if args, err := readArgs(id.PID); err == nil {
		f.Cmdline = firstBytes(strings.Join(args, " "), maxFactsCmdline)
	}
	return f, nil
}

// Measure is a faster Describe for many processes: it reads only the stat of the process,
// so Cmdline is empty and Name is Stat.Comm.
func Measure(id Identity, host Host, prev Sample) (Facts, error) {
	st, err := statOf(id)
	if err != nil {
		return Facts{}, fmt.Errorf("describe %s: %w", id, err)
	}
	now, err := startClock()
	if err != nil {
		return Facts{}, err
	}
	elapsed := max(0, now-ticks(st.Start))
	f := Facts{
		Identity: id, Name: st.Comm, State: string(st.State), Threads: st.Threads,
		UserTime: ticks(st.UTime), SystemTime: ticks(st.STime),
		RSS:     st.RSS(),
		Elapsed: elapsed.Truncate(time.Second), StartedAt: time.Now().Add(-elapsed),
		Sample:        Sample{Identity: id, CPU: st.CPU(), At: now},
		CPUPercentAll: percentOfHost(st.CPU(), elapsed, host.CPUs),
	}
	f.CPUPercent = f.CPUPercentAll
	if prev.Identity == id && now > prev.At {
		f.CPUPercent = percentOfHost(st.CPU()-prev.CPU, now-prev.At, host.CPUs)
	}
	if host.MemTotal > 0 {
		f.RSSPercent = float64(f.RSS) / float64(host.MemTotal) * 100
	}
	return f, nil
}

// firstBytes returns at most limit bytes of a text, as valid UTF-8.
func firstBytes(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.ToValidUTF8(text[:min(limit, len(text))], "")
}

// Load is the usage of a host, in percent of all its CPUs and memory.
type Load struct {
	CPU    float64
	Memory float64
}

// CPUTime is the CPU time of all CPUs of a host since its start, in clock ticks.
type CPUTime struct{ Busy, Total uint64 }

// LoadSince returns the present memory load, and the CPU load between two readings; a zero
// earlier gives the average since the host started. If the readings are less than a second
// of CPU time apart, CPU is 0 and fresh is false.
func (h Host) LoadSince(earlier, now CPUTime) (l Load, fresh bool) {
	if h.MemTotal > 0 {
		l.Memory = percent(h.MemTotal-h.MemAvailable<<10, h.MemTotal)
	}
	total := int64(now.Total - earlier.Total)
	if now.Total < earlier.Total || total < TicksPerSecond {
		return l, false
	}
	l.CPU = percent(int64(now.Busy-min(earlier.Busy, now.Busy)), total)
	return l, true
}

// percent returns part in percent of whole, limited to 0-100: the two values may be read at
// different moments.
func percent(part, whole int64) float64 {
	return float64(min(max(part, 0), whole)) / float64(whole) * 100
}
