package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signal sends sig to exactly the identified process and never to another process that has
// reused its pid. It returns nil if the process is gone. A permission error names both users.
func Signal(id Identity, sig syscall.Signal) error {
	if id.PID <= 1 || id.PID == os.Getpid() {
		return fmt.Errorf("signal pid %d: refused, it is never a managed process", id.PID)
	}
	fd, err := openPidfd(id)
	switch {
	case errors.Is(err, ErrGone):
		return nil
	case errors.Is(err, errNoPidfd):
		err = signalByPid(id, sig)
	case err != nil:
		return err
	default:
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
		closeFD(fd)
	}
	return explainSignal(id, err)
}

// stopProcess prevents a process that is about to be killed from starting others.
func stopProcess(id Identity) error { return Signal(id, syscall.SIGSTOP) }

// Continue continues a process that was stopped by a signal, so that it can handle
// another signal.
func Continue(id Identity) error { return Signal(id, syscall.SIGCONT) }

// errNoPidfd is returned if the kernel or its system call filter does not support pidfd.
var errNoPidfd = errors.New("pidfd is not available")

// openPidfd opens a pidfd of the identified process. It verifies the start time
// before and after, so that the descriptor cannot belong to another process.
func openPidfd(id Identity) (int, error) {
	if _, err := statOf(id); err != nil {
		return -1, err
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	switch {
	case err == nil:
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		return -1, errNoPidfd
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		// An ending process can cause each of these errors.
		if _, err := statOf(id); err != nil {
			return -1, err
		}
		return -1, errNoPidfd
	default:
		return -1, fmt.Errorf("open a pidfd of %s: %w", id, err)
	}
	if _, err := statOf(id); err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// signalByPid is for kernels without pidfd (before 5.3): it verifies the process
// right before kill, which leaves a gap of microseconds.
func signalByPid(id Identity, sig syscall.Signal) error {
	if _, err := statOf(id); err != nil {
		return unix.ESRCH
	}
	return unix.Kill(id.PID, sig)
}

func explainSignal(id Identity, err error) error {
	switch {
	case err == nil, errors.Is(err, unix.ESRCH):
		return nil
	case errors.Is(err, unix.EPERM):
		_, uid, _ := readStatus(id.PID)
		return fmt.Errorf("not permitted to signal pid %d: it runs as uid %d, the agent as uid %d: %w",
			id.PID, uid, os.Geteuid(), err)
	default:
		return fmt.Errorf("signal pid %d: %w", id.PID, err)
	}
}

// signalName returns the common name of a signal: SIGSEGV, not "segmentation fault".
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}

// howEnded returns the exit of a process that has just ended. Processes other than the
// parent can read the exit in /proc until the process is reaped, and since Linux 6.15
// through a pidfd afterwards; otherwise it is unknown.
func howEnded(id Identity, pidfd int) Exit {
	if status, ok := zombieStatus(id); ok {
		return exitFrom(status)
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if pidfd < 0 || unix.IoctlPidfdInfo(pidfd, &info) != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return Exit{}
	}
	return exitFrom(unix.WaitStatus(uint32(info.Exit_code)))
}

// zombieStatus returns the exit status, the last number of a zombie's /proc/PID/stat. The
// kernel writes 0 for readers that may not trace the process. A reader that may trace it
// gets ErrGone for the executable, since a zombie has none.
func zombieStatus(id Identity) (unix.WaitStatus, bool) {
	var buf [1024]byte
	n, err := readSmall(procPath(id.PID, "stat"), buf[:])
	if err != nil {
		return 0, false
	}
	line := bytes.TrimSpace(buf[:n])
	st, err := parseStat(line)
	if err != nil || st.Start != id.Start || !dead(st.State) {
		return 0, false
	}
	if _, err := exePath(id.PID); !errors.Is(err, ErrGone) {
		return 0, false
	}
	status, err := strconv.ParseUint(string(line[bytes.LastIndexByte(line, ' ')+1:]), 10, 32)
	return unix.WaitStatus(status), err == nil
}

func exitFrom(status unix.WaitStatus) Exit {
	if status.Signaled() {
		return Exit{Known: true, Signal: status.Signal()}
	}
	return Exit{Known: status.Exited(), Code: max(status.ExitStatus(), 0)}
}
