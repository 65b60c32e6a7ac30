package proc

import (
	"os"
	"time"
)

// MaxFactsCmdline bounds Facts.Cmdline, in bytes.
const MaxFactsCmdline = 4 << 10

// Facts are what a status shows of one process. Percentages are shares of the
// whole host: 100 is every CPU, or all memory.
type Facts struct {
	Identity Identity
	Name     string // base name of the executable
	Cmdline  string // arguments joined by spaces, at most MaxFactsCmdline bytes of valid UTF-8
	State    string // one letter: R S D T …
	Threads  int

	UserTime   time.Duration // CPU time in user mode since the start
	SystemTime time.Duration // CPU time in the kernel since the start

	RSS        int64   // bytes
	RSSPercent float64 // of MemTotal

	CPUPercent    float64 // since the earlier sample, or the average (see CPUIsAverage)
	CPUIsAverage  bool    // there was no earlier sample of this process to compare with
	CPUPercentAll float64 // average since the start

	Elapsed time.Duration // since the start, suspended time included, whole seconds

	// StartedAt is the start on the wall clock of now. It moves when the clock
	// is set: show the first value of an identity and keep it.
	StartedAt time.Time

	Sample Sample // to hand to the next Describe
}

// Sample is a process's CPU time at one moment.
type Sample struct {
	Identity Identity
	CPU      time.Duration // user and system
	At       time.Duration // since boot
}

// Host are facts of this host.
type Host struct {
	BootID       string
	Uptime       time.Duration
	CPUs         int   // online
	MemTotal     int64 // bytes
	MemAvailable int64 // kB, as the kernel estimates what a new program can have
	Timezone     string
	UTCOffset    time.Duration
}

// percentOfHost is a CPU time per elapsed time as a share of all CPUs; 0 when
// no time passed.
func percentOfHost(cpu, elapsed time.Duration, cpus int) float64 {
	if elapsed <= 0 || cpus <= 0 || cpu <= 0 {
		return 0
	}
	return float64(cpu) / float64(elapsed) / float64(cpus) * 100
}

// CPU is the process's CPU time.
func (st Stat) CPU() time.Duration { return ticks(st.UTime) + ticks(st.STime) }

// RSS is the resident memory in bytes, shared pages included.
func (st Stat) RSS() int64 { return st.RSSPages * int64(os.Getpagesize()) }
