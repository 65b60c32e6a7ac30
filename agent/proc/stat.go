package proc

import (
	"bytes"
	"fmt"
	"strconv"
	"time"
)

// Stat is one line of /proc/PID/stat. Times are clock ticks (see [TicksPerSecond]).
type Stat struct {
	PID      int
	Comm     string // kernel's name, at most 15 bytes, may contain spaces and ')'
	State    byte
	PPID     int
	PGID     int
	Session  int
	UTime    uint64
	STime    uint64
	Threads  int
	Start    uint64 // ticks since boot
	RSSPages int64
	Kernel   bool // a kernel thread
}

// dead reports whether the state letter means that nothing runs any more: a
// zombie still answers kill(pid, 0), but it is a record and not a process.
func dead(state byte) bool { return state == 'Z' || state == 'X' || state == 'x' }

// Indexes of the fields that follow the name, counted from the state letter.
const (
	fieldState   = 0
	fieldPPID    = 1
	fieldPGID    = 2
	fieldSession = 3
	fieldFlags   = 6
	fieldUTime   = 11
	fieldSTime   = 12
	fieldThreads = 17
	fieldStart   = 19
	fieldRSS     = 21
	statFields   = 22
)

// flagKernelThread is PF_KTHREAD of the kernel's task flags.
const flagKernelThread = 0x00200000

// parseStat reads the text of /proc/PID/stat. The name is everything between
// the first '(' and the last ')', because a program may call itself "a) R (b".
func parseStat(text []byte) (Stat, error) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 1 || end < open {
		return Stat{}, fmt.Errorf("stat line without a name: %.40q", text)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(text[:open])))
	if err != nil {
		return Stat{}, fmt.Errorf("stat line without a pid: %.40q", text)
	}
	st := Stat{PID: pid, Comm: string(text[open+1 : end])}
	rest := text[end+1:]
	for i := range statFields {
		rest = bytes.TrimLeft(rest, " ")
		n := bytes.IndexAny(rest, " \n")
		if n < 0 {
			n = len(rest)
		}
		if n == 0 {
			return Stat{}, fmt.Errorf("stat line of pid %d ends after %d fields", pid, i)
		}
		if err := st.setField(i, rest[:n]); err != nil {
			return Stat{}, fmt.Errorf("stat line of pid %d, field %d: %w", pid, i, err)
		}
		rest = rest[n:]
	}
	return st, nil
}

func (st *Stat) setField(i int, text []byte) (err error) {
	switch i {
	case fieldState:
		st.State = text[0]
	case fieldPPID:
		st.PPID, err = strconv.Atoi(string(text))
	case fieldPGID:
		st.PGID, err = strconv.Atoi(string(text))
	case fieldSession:
		st.Session, err = strconv.Atoi(string(text))
	case fieldFlags:
		var flags uint64
		flags, err = strconv.ParseUint(string(text), 10, 64)
		st.Kernel = flags&flagKernelThread != 0
	case fieldUTime:
		st.UTime, err = strconv.ParseUint(string(text), 10, 64)
	case fieldSTime:
		st.STime, err = strconv.ParseUint(string(text), 10, 64)
	case fieldThreads:
		st.Threads, err = strconv.Atoi(string(text))
	case fieldStart:
		st.Start, err = strconv.ParseUint(string(text), 10, 64)
	case fieldRSS:
		st.RSSPages, err = strconv.ParseInt(string(text), 10, 64)
	}
	return err
}

// ticks converts clock ticks to a duration.
func ticks(n uint64) time.Duration { return time.Duration(n) * (time.Second / TicksPerSecond) }
