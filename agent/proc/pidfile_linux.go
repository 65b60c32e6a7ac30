package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// readPidFile opens without blocking, so that a FIFO or a device in the file's
// place cannot hang the agent, and reads a bounded part of a regular file only.
func readPidFile(path string) (text []byte, written time.Time, err error) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	})
	if err != nil {
		return nil, time.Time{}, explainOpen(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, time.Time{}, fmt.Errorf("it is not a regular file but %s", info.Mode().Type())
	}
	text, err = io.ReadAll(io.LimitReader(f, maxPidFile))
	return text, info.ModTime(), err
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
