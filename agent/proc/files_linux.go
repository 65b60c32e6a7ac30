package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// maxPid is the largest pid that Linux assigns (PID_MAX_LIMIT on 64 bit).
const maxPid = 1 << 22

func programName(path string) string { return filepath.Base(path) }

// plainName converts a configured program name to the form that programName returns.
func plainName(name string) string { return name }

// plainPath converts a path for a comparison with another path.
func plainPath(path string) string { return path }

func uidOf(account Account) int { return int(account.UID) }

func systemPath(path string) bool {
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/snap", "/nix"} {
		if under(path, dir) && !under(path, "/usr/local") {
			return true
		}
	}
	return false
}

// readPidFile reads at most maxPidFile bytes of a regular file.
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

// fileWritten is a faster pidFileWritten: one system call instead of five, but it follows
// every symbolic link.
func fileWritten(path string) time.Time {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return time.Time{}
	}
	return time.Unix(st.Mtim.Unix())
}

// pidFileWritten returns the modification time of a pid file; the zero time if the file
// cannot be read.
func pidFileWritten(path string) time.Time {
	file, err := openPath(path)
	if err != nil {
		return time.Time{}
	}
	defer file.Close()
	info, err := file.Stat()
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

// diskTrouble reports whether the disk or the file server failed, so that the
// content of the file is unknown.
func diskTrouble(err error) bool { return errors.Is(err, unix.EIO) || errors.Is(err, unix.ESTALE) }
