package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// readPidFile reads a bounded part of a regular file only. What else is in the
// file's place is not even opened: that would wake the writer of a FIFO, and
// there are devices of which to open them is to use them, such as a watchdog.
func readPidFile(path string) (text []byte, written time.Time, err error) {
	place, err := openFile(path, unix.O_PATH)
	if err != nil {
		return nil, time.Time{}, explainOpen(err)
	}
	defer place.Close()
	info, err := place.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, time.Time{}, fmt.Errorf("it is not a regular file but %s", info.Mode().Type())
	}
	// By the descriptor, since the path may lead elsewhere by now.
	f, err := openFile(fmt.Sprintf("/proc/self/fd/%d", place.Fd()), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, time.Time{}, explainOpen(err)
	}
	defer f.Close()
	text, err = io.ReadAll(io.LimitReader(f, maxPidFile))
	return text, info.ModTime(), err
}

func openFile(path string, flags int) (*os.File, error) {
	fd, err := retryEINTR(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func explainOpen(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return errNoPidFile
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("uid %d may not read it: %w", os.Geteuid(), os.ErrPermission)
	}
	return err
}

// diskTrouble reports whether the disk or the file server failed, and so
// nothing is known about the file.
func diskTrouble(err error) bool { return errors.Is(err, unix.EIO) || errors.Is(err, unix.ESTALE) }
