package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// readPidFile reads a bounded part of a regular file only.
func readPidFile(path string) (text []byte, written time.Time, err error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, time.Time{}, explainOpen(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	text, err = io.ReadAll(io.LimitReader(f, maxPidFile))
	return text, info.ModTime(), err
}

// fileWritten takes one system call, where pidFileWritten takes five.
func fileWritten(path string) time.Time {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return time.Time{}
	}
	return time.Unix(st.Mtim.Unix())
}

// pidFileWritten is when a pid file was written last; the zero time if that
// cannot be found out.
func pidFileWritten(path string) time.Time {
	place, err := openPlace(path)
	if err != nil {
		return time.Time{}
	}
	defer place.Close()
	info, err := place.Stat()
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
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
