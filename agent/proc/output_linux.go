package proc

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// OutputHeld reports whether any process has the file open for writing. It
// asks for a read lease, which the kernel refuses while there are writers: one
// system call instead of a walk over every descriptor of the host. When the
// file system has no leases the answer is true, so that nothing in use is
// removed. A missing file is not held.
func OutputHeld(path string) bool {
	err := tryLease(path)
	return err != nil && !errors.Is(err, os.ErrNotExist)
}

// tryLease takes a read lease and gives it back. EAGAIN means that somebody
// writes, other errors that it cannot be told.
func tryLease(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close() // gives the lease back
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	return err
}
