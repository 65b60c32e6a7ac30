package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// TicksPerSecond is the number of units of Identity.Start in a second: Windows counts in
// 100 ns.
const TicksPerSecond = 10_000_000

// epoch is 1970 on the kernel's clock, which begins in 1601. Identity.Start counts from
// 1970, so that it fits into a time.Duration.
const epoch = 116444736000000000

// Pids of the kernel.
const (
	idlePid   = 0
	systemPid = 4
)

// bootID returns the boot time minus the clock changes since the boot. The kernel adjusts
// both values when the clock is set, so the difference is constant and is read once.
var bootID = sync.OnceValues(func() (string, error) {
	// SYSTEM_TIMEOFDAY_INFORMATION; x/sys has only the class.
	var info struct {
		BootTime, CurrentTime, TimeZoneBias int64
		TimeZoneID, Reserved                uint32
		BootTimeBias, SleepTimeBias         uint64
	}
	err := windows.NtQuerySystemInformation(windows.SystemTimeOfDayInformation, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info)), nil)
	if err != nil {
		return "", fmt.Errorf("read the time of the boot: %w", err)
	}
	return fmt.Sprintf("%x", uint64(info.BootTime)-info.BootTimeBias), nil
})

// startClock returns the present time on the clock of Identity.Start. Setting the clock
// changes it, but does not change the start times of processes.
func startClock() (time.Duration, error) {
	var now windows.Filetime
	windows.GetSystemTimePreciseAsFileTime(&now)
	return ticks(sinceEpoch(now)), nil
}

// startTime returns the start time of a process by the wall clock at its start.
func startTime(id Identity) (time.Time, error) { return time.Unix(0, int64(ticks(id.Start))), nil }

func sinceEpoch(t windows.Filetime) uint64 { return counted(t) - epoch }

func counted(t windows.Filetime) uint64 {
	return uint64(t.HighDateTime)<<32 | uint64(t.LowDateTime)
}

// open returns a handle of a live process; its pid is not reused while the handle is open. For
// a process that has ended it returns ErrGone, even if another process has a handle of it.
func open(pid int, access uint32) (windows.Handle, error) {
	if pid <= 0 {
		return 0, ErrGone
	}
	h, err := windows.OpenProcess(access|windows.PROCESS_QUERY_LIMITED_INFORMATION|windows.SYNCHRONIZE, false, uint32(pid))
	switch {
	case errors.Is(err, windows.ERROR_INVALID_PARAMETER): // no such pid
		return 0, ErrGone
	case err != nil:
		return 0, err
	}
	if event, err := windows.WaitForSingleObject(h, 0); err == nil && event == windows.WAIT_OBJECT_0 {
		closeHandle(h)
		return 0, ErrGone
	}
	return h, nil
}

// openSame opens exactly the identified process, or returns ErrGone.
func openSame(id Identity, access uint32) (windows.Handle, error) {
	boot, err := bootID()
	if err != nil {
		return 0, err
	}
	if id.BootID != boot {
		return 0, ErrGone
	}
	h, err := open(id.PID, access)
	if err != nil {
		return 0, err
	}
	times, err := readTimes(h)
	if err == nil && times.start != id.Start {
		err = ErrGone
	}
	if err != nil {
		closeHandle(h)
		return 0, err
	}
	return h, nil
}

// closeHandle closes a handle. Nothing was written through the handle, so an error is ignored.
func closeHandle(h windows.Handle) { _ = windows.CloseHandle(h) }

type times struct{ start, user, system uint64 }

func readTimes(h windows.Handle) (times, error) {
	var start, exit, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &start, &exit, &kernel, &user); err != nil {
		return times{}, fmt.Errorf("read process times: %w", err)
	}
	return times{start: sinceEpoch(start), user: counted(user), system: counted(kernel)}, nil
}

// Identify returns the identity of a live process. It returns ErrGone for a missing pid and
// for the kernel's pids.
func Identify(pid int) (Identity, error) {
	id, err := identify(pid)
	if err != nil {
		return Identity{}, fmt.Errorf("identify pid %d: %w", pid, err)
	}
	return id, nil
}

func identify(pid int) (Identity, error) {
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	if pid == systemPid {
		return Identity{}, ErrGone
	}
	h, err := open(pid, 0)
	if err != nil {
		return Identity{}, err
	}
	defer closeHandle(h)
	times, err := readTimes(h)
	return Identity{BootID: boot, PID: pid, Start: times.start}, err
}

// ReadStat reads the stat of a process. It returns [ErrGone] for a missing process.
func ReadStat(pid int) (Stat, error) {
	h, err := open(pid, 0)
	if err != nil {
		return Stat{}, err
	}
	defer closeHandle(h)
	times, err := readTimes(h)
	if err != nil {
		return Stat{}, err
	}
	var basic windows.PROCESS_BASIC_INFORMATION
	err = windows.NtQueryInformationProcess(h, windows.ProcessBasicInformation, unsafe.Pointer(&basic), uint32(unsafe.Sizeof(basic)), nil)
	if err != nil {
		return Stat{}, fmt.Errorf("read pid %d: %w", pid, err)
	}
	var memory processMemoryCounters
	memory.size = uint32(unsafe.Sizeof(memory))
	if err := callBool(procGetProcessMemoryInfo, uintptr(h), uintptr(unsafe.Pointer(&memory)), uintptr(memory.size)); err != nil {
		return Stat{}, fmt.Errorf("read the memory of pid %d: %w", pid, err)
	}
	st := Stat{
		PID: pid, PPID: int(basic.InheritedFromUniqueProcessId), PGID: pid, Session: pid, State: 'R', Kernel: pid == systemPid,
		Start: times.start, UTime: times.user, STime: times.system,
		RSSPages: int64(memory.workingSetSize) / int64(os.Getpagesize()),
	}
	if exe, err := imageOf(h); err == nil {
		st.Comm = filepath.Base(exe)
	}
	if parent, err := identify(st.PPID); err != nil || parent.Start > st.Start {
		st.PPID = 0 // the parent is gone and its pid may be reused
	}
	return st, nil
}

// inspect reads all attributes of a process that a search needs. Unreadable attributes stay
// empty.
func inspect(boot string, st Stat) (Process, error) {
	p := processOf(boot, st)
	h, err := openSame(p.Identity, windows.PROCESS_VM_READ|windows.PROCESS_QUERY_INFORMATION)
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		h, err = openSame(p.Identity, 0)
	}
	if err != nil {
		return Process{}, err
	}
	defer closeHandle(h)
	if p.Exe, err = imageOf(h); err == nil {
		p.Name = filepath.Base(p.Exe)
	}
	if text, err := readParameters(h); err == nil {
		p.Cwd, p.Args = text.dir, splitArgs(text.commandLine)
	}
	return p, nil
}

func exePath(pid int) (string, error) {
	h, err := open(pid, 0)
	if err != nil {
		return "", permission(err)
	}
	defer closeHandle(h)
	return imageOf(h)
}

func workDir(pid int) (string, error) {
	text, err := parametersOf(pid)
	return text.dir, permission(err)
}

func readArgs(pid int) ([]string, error) {
	text, err := parametersOf(pid)
	if err != nil {
		return nil, err
	}
	return splitArgs(text.commandLine), nil
}

// markOf returns the mark of a process; "" if the process has no mark or its environment
// cannot be read.
func markOf(pid int) string {
	text, err := parametersOf(pid)
	if err != nil {
		return ""
	}
	for entry := range strings.SplitSeq(text.environment, "\x00") {
		if mark, ok := strings.CutPrefix(entry, KeyMark+"="); ok {
			return mark
		}
	}
	return ""
}

func imageOf(h windows.Handle) (string, error) {
	buf := make([]uint16, windows.MAX_LONG_PATH)
	size := uint32(len(buf))
	if err := windows.QueryFullProcessImageName(h, 0, &buf[0], &size); err != nil {
		return "", err
	}
	return windows.UTF16ToString(buf[:size]), nil
}

// splitArgs splits a command line like the C runtime. A malformed line is returned as one word.
func splitArgs(line string) []string {
	if line == "" {
		return nil
	}
	args, err := windows.DecomposeCommandLine(line)
	if err != nil {
		return []string{line}
	}
	return args
}

// hiddenPid reports whether a pid exists but the agent may not open the process.
func hiddenPid(pid int) bool {
	_, err := open(pid, 0)
	return errors.Is(err, windows.ERROR_ACCESS_DENIED)
}

// permission converts Windows' access denied error to [os.ErrPermission].
func permission(err error) error {
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return os.ErrPermission
	}
	return err
}

// exhausted reports whether an error is a lack of resources of the agent or the host. Such
// an error says nothing about the process.
func exhausted(err error) bool {
	return errors.Is(err, windows.ERROR_NO_SYSTEM_RESOURCES) || errors.Is(err, windows.ERROR_NOT_ENOUGH_MEMORY) ||
		errors.Is(err, windows.ERROR_TOO_MANY_OPEN_FILES) || errors.Is(err, windows.ERROR_COMMITMENT_LIMIT)
}
