package proc

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// OutputHeld reports whether any process has the file open for writing. It
// asks for a read lease, which the kernel refuses while there are writers: one
// system call instead of a walk over every descriptor of the host. When the
// file system has no leases the answer is true, so that nothing in use is
// removed. A missing file is not held.
func OutputHeld(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // what a command wrote, for which the agent chose the place
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	return tryLease(f) != nil
}

// tryLease takes a read lease, which ends when the file is closed. EAGAIN
// means that a process has the file open for writing, other errors that the
// kernel cannot say.
func tryLease(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	return err
}

// punch makes a hole of the first n bytes of a file: they take no room any more
// and read as zeros, and the file is as long as before.
func punch(f *os.File, n int64) error {
	_, err := retryEINTR(func() (int, error) {
		return 0, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, n)
	})
	return err
}

// room is how many bytes of a file system a file takes, holes left out. A file
// system that sets room aside for what may come counts more than there is.
func room(info os.FileInfo) int64 {
	const block = 512 // bytes, whatever the file system counts in
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(info.Size(), st.Blocks*block)
	}
	return info.Size()
}

// decodeOutput changes nothing: programs write UTF-8 here, or nobody knows what.
func decodeOutput(text []byte, _ bool) []byte { return text }
