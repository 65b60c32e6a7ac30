package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied maps the values of -deny to system calls, with the errors that old kernels or
// security filters return.
var denied = map[string]struct {
	calls []uint32
	errno syscall.Errno
}{
	"pidfd":         {[]uint32{unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL}, syscall.ENOSYS}, // an old kernel
	"guarded-pidfd": {[]uint32{unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL}, syscall.EPERM},
	"setgroups":     {[]uint32{unix.SYS_SETGROUPS}, syscall.EPERM},
}

// execDenied executes another program that the kernel denies the named system calls. It
// returns only after an error.
func execDenied(name string, line []string) error {
	what, known := denied[name]
	if !known || len(line) == 0 {
		return fmt.Errorf("-deny %q %s", name, strings.Join(line, " "))
	}
	path, err := exec.LookPath(line[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the filter applies to this thread, which executes the program
	if err := install(filter(what.calls, what.errno)); err != nil {
		return err
	}
	return syscall.Exec(path, line, os.Environ())
}

// filter returns a program that the kernel runs at each system call.
func filter(calls []uint32, errno syscall.Errno) []unix.SockFilter {
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // number of the call
	for i, call := range calls {
		program = append(program, unix.SockFilter{
			Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jt: uint8(len(calls) - i),
		})
	}
	return append(program,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)})
}

func install(program []unix.SockFilter) error {
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// Unprivileged processes may install a filter only with no_new_privs.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)), 0, 0); err != nil {
		return errors.Join(errors.New("install the filter"), err)
	}
	runtime.KeepAlive(program)
	return nil
}
