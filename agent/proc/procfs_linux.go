package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// TicksPerSecond is USER_HZ, which the kernel fixes at 100 on every architecture
// that Go supports.
const TicksPerSecond = 100

// Maximum number of bytes that are read of a command line and an environment.
const (
	maxCmdline = 32 << 10
	maxEnviron = 256 << 10
)

// bootID returns the kernel's id of this boot. The id is constant while this program runs,
// so it is read once.
var bootID = sync.OnceValues(func() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
})

// startClock returns the present time on the clock of Identity.Start: the time since the
// boot, including suspended time.
func startClock() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("read the boot clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// ReadStat reads the stat of a process, which may be a zombie. It returns [ErrGone] for a
// missing process. As the agent's most frequent operation it needs only three system calls
// and one allocation.
func ReadStat(pid int) (Stat, error) {
	var buf [1024]byte
	n, err := readSmall("/proc/"+strconv.Itoa(pid)+"/stat", buf[:])
	if err != nil {
		return Stat{}, goneOr(err)
	}
	return parseStat(buf[:n])
}

func readSmall(path string, buf []byte) (int, error) {
	fd, err := retryEINTR(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return 0, err
	}
	defer closeFD(fd)
	return retryEINTR(func() (int, error) { return unix.Read(fd, buf) })
}

// closeFD closes a descriptor. Nothing was written to the descriptor, so an error is ignored.
func closeFD(fd int) { _ = unix.Close(fd) }

func retryEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// goneOr converts the errors of /proc for a missing process to ErrGone.
func goneOr(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	return err
}

// readBounded reads at most limit bytes of a file in /proc. Such files report size 0, and a
// process determines the length of its command line.
func readBounded(path string, limit int) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // below /proc
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := bytes.NewBuffer(make([]byte, 0, 4096))
	_, _ = buf.ReadFrom(io.LimitReader(f, int64(limit))) // if the process ends, its text ends
	return buf.Bytes(), nil
}

func readArgs(pid int) ([]string, error) {
	text, err := readBounded(procPath(pid, "cmdline"), maxCmdline)
	if err != nil {
		return nil, goneOr(err)
	}
	text = bytes.TrimRight(text, "\x00")
	if len(text) == 0 {
		return nil, nil
	}
	return strings.Split(string(text), "\x00"), nil
}

// readStatus returns the thread group and the effective user of a pid.
func readStatus(pid int) (tgid, uid int, err error) {
	text, err := readBounded(procPath(pid, "status"), 4<<10)
	if err != nil {
		return 0, -1, goneOr(err)
	}
	tgid, uid = -1, -1
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		switch {
		case len(fields) >= 2 && string(fields[0]) == "Tgid:":
			tgid, err = strconv.Atoi(string(fields[1]))
		case len(fields) >= 3 && string(fields[0]) == "Uid:":
			uid, err = strconv.Atoi(string(fields[2]))
		}
		if err != nil {
			return 0, -1, fmt.Errorf("status of pid %d: %w", pid, err)
		}
	}
	return tgid, uid, nil
}

// readLink reads /proc/PID/exe or cwd. The kernel appends " (deleted)" once the file
// is unlinked or replaced, as by an upgrade. ErrGone means that the process is
// ending: it has closed its files, but still has a pid.
func readLink(pid int, name string) (string, error) {
	path, err := os.Readlink(procPath(pid, name))
	return strings.TrimSuffix(path, " (deleted)"), goneOr(err)
}

func exePath(pid int) (string, error) { return readLink(pid, "exe") }

func workDir(pid int) (string, error) { return readLink(pid, "cwd") }

func procPath(pid int, name string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + name
}

// Identify returns the identity of a live process. It returns ErrGone for a missing pid, a
// zombie and a thread id.
func Identify(pid int) (Identity, error) {
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	st, err := ReadStat(pid)
	var tgid int
	if err == nil {
		tgid, _, err = readStatus(pid)
	}
	if err == nil && (tgid != pid || dead(st.State)) {
		err = ErrGone
	}
	if err != nil {
		return Identity{}, fmt.Errorf("identify pid %d: %w", pid, err)
	}
	return Identity{BootID: boot, PID: pid, Start: st.Start}, nil
}

// exhausted reports whether an error is a lack of resources of the agent or the host. Such
// an error says nothing about the process.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// inspect reads all attributes of a process that a search needs. Unreadable attributes stay
// empty.
func inspect(boot string, st Stat) (Process, error) {
	tgid, uid, err := readStatus(st.PID)
	if err != nil {
		return Process{}, err
	}
	if tgid != st.PID {
		return Process{}, fmt.Errorf("it is a thread of pid %d", tgid)
	}
	p := processOf(boot, st)
	p.UID = uid
	var exeErr, cwdErr, argsErr error
	p.Exe, exeErr = exePath(st.PID)
	p.Cwd, cwdErr = workDir(st.PID)
	p.Args, argsErr = readArgs(st.PID)
	if errors.Is(exeErr, ErrGone) || errors.Is(cwdErr, ErrGone) || errors.Is(argsErr, ErrGone) {
		return Process{}, ErrGone
	}
	if p.Exe != "" {
		p.Name = filepath.Base(p.Exe)
	}
	return p, nil
}

// hiddenPid reports whether a pid exists although /proc hides it (hidepid=2).
func hiddenPid(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.EPERM) }

// startTime returns the start time of a process by the present wall clock.
func startTime(id Identity) (time.Time, error) {
	up, err := startClock()
	if err != nil {
		return time.Time{}, err
	}
	return time.Now().Add(ticks(id.Start) - up), nil
}

// markOf returns the mark of a process; "" if the process has no mark or its environment
// cannot be read.
func markOf(pid int) string {
	environ, err := readBounded(procPath(pid, "environ"), maxEnviron)
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if mark, ok := bytes.CutPrefix(entry, []byte(KeyMark+"=")); ok {
			return string(mark)
		}
	}
	return ""
}
