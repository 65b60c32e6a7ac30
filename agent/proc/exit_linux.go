package proc

import (
	"bytes"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// howEnded is how a process that has just died ended, as far as the kernel tells
// others than its parent: its line in /proc does until it is reaped, and since
// Linux 6.15 a pidfd does after that.
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

// zombieStatus is the last number of a dead process's line. It is 0 for who may
// not trace the process: who may learns that it has no executable any more.
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
