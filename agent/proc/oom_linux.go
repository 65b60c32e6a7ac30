package proc

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// hostPIDs is the host's pid namespace, whose pids the kernel's log uses.
	hostPIDs = "pid:[4026531836]"

	// maxRecord bounds one record of the kernel's log, in bytes.
	maxRecord = 16 << 10

	// maxOOMKills bounds the number of stored kills.
	maxOOMKills = 1024

	// countedFor is the time after an increase of the counter within which the end of a
	// process is attributed to the out-of-memory killer.
	countedFor = 10 * time.Second
)

// OOMLog records the processes that the kernel's out-of-memory killer has killed, from the
// kernel's log. If the log cannot be read or has pids of another namespace, OOMLog uses the
// counter of the agent's control group: it attributes an increase to the processes that end
// just afterwards. Use the result for messages only: it is not reliable.
type OOMLog struct {
	mu    sync.Mutex
	kmsg  int                   // descriptor of the kernel's log; -1 = not open
	kills map[int]time.Duration // time of the last kill by pid, on the log's clock

	counters []string // paths of files with an oom_kill line
	counted  int64
	rose     time.Time
}

// NewOOMLog opens the kernel's log, if it is usable, and reads the counters. The caller
// closes the log.
func NewOOMLog() *OOMLog {
	l := &OOMLog{kmsg: -1, kills: map[int]time.Duration{}}
	if ns, err := os.Readlink("/proc/self/ns/pid"); err == nil && ns == hostPIDs {
		if fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			l.kmsg = fd
		}
	}
	root := os.DirFS("/")
	for _, dir := range controlDirs(root, "memory") {
		l.counters = append(l.counters, path.Join(dir, "memory.events"), path.Join(dir, "memory.oom_control"))
	}
	l.counted = oomCount(root, l.counters)
	return l
}

// Close closes the log. Afterwards Killed uses the counters.
func (l *OOMLog) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kmsg >= 0 {
		closeFD(l.kmsg)
		l.kmsg = -1
	}
}

// Poll reads the counters. Call it periodically, so that an old increase is not attributed
// to a process that ends later.
func (l *OOMLog) Poll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kmsg < 0 {
		l.count()
	}
}

// Killed reports whether a process that has just ended is known to be killed by the
// out-of-memory killer.
func (l *OOMLog) Killed(id Identity) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kmsg < 0 {
		l.count()
		return !l.rose.IsZero() && time.Since(l.rose) < countedFor
	}
	l.read()
	at, named := l.kills[id.PID]
	return named && at >= startOnLog(id)
}

// startOnLog returns the earliest possible start of the process on the clock of the log,
// which does not include suspended time.
func startOnLog(id Identity) time.Duration {
	boot, err := startClock()
	var awake unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
		return 0
	}
	return ticks(id.Start) - (boot - time.Duration(awake.Nano())) - time.Second
}

// read reads the records that were added to the log since the last call.
func (l *OOMLog) read() {
	buf := make([]byte, maxRecord)
	for {
		n, err := retryEINTR(func() (int, error) { return unix.Read(l.kmsg, buf) })
		if errors.Is(err, unix.EPIPE) { // old records were overwritten; newer ones follow
			continue
		}
		if err != nil || n == 0 {
			return
		}
		if pid, at, ok := oomKill(buf[:n]); ok {
			if len(l.kills) >= maxOOMKills {
				clear(l.kills)
			}
			l.kills[pid] = at
		}
	}
}

// oomKill parses a record of the kernel's log such as
//
//	3,416,1683479488,-;Memory cgroup out of memory: Killed process 27026 (tail) total-vm:…
func oomKill(record []byte) (pid int, at time.Duration, ok bool) {
	head, text, _ := bytes.Cut(record, []byte(";"))
	_, text, found := bytes.Cut(text, []byte("ut of memory: Killed process "))
	fields := bytes.Split(head, []byte(","))
	if !found || len(fields) < 3 {
		return 0, 0, false
	}
	number, _, _ := bytes.Cut(text, []byte(" "))
	pid, err1 := strconv.Atoi(string(number))
	us, err2 := strconv.ParseInt(string(fields[2]), 10, 64)
	return pid, time.Duration(us) * time.Microsecond, err1 == nil && err2 == nil
}

func (l *OOMLog) count() {
	if n := oomCount(os.DirFS("/"), l.counters); n != l.counted {
		if n > l.counted {
			l.rose = time.Now()
		}
		l.counted = n
	}
}

// oomCount returns the sum of the oom_kill lines of control groups.
func oomCount(root fs.FS, files []string) int64 {
	var sum int64
	for _, name := range files {
		text, _ := fs.ReadFile(root, name) // missing in the other cgroup version
		sum += lineValue(text, "oom_kill")
	}
	return sum
}
