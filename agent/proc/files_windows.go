package proc

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/windows"
)

// maxPid is the largest possible pid.
const maxPid = math.MaxInt32

func programName(path string) string { return windowsProgramName(path) }

func plainName(name string) string { return windowsProgramName(name) }

func plainPath(path string) string { return windowsPlainPath(path) }

// uidOf returns -1: accounts of Windows have no user id.
func uidOf(Account) int { return -1 }

// systemPath reports whether a path is in the Windows folder, which is the working
// directory of many services.
func systemPath(path string) bool {
	dir, err := windows.GetSystemWindowsDirectory()
	return err == nil && under(path, dir)
}

// readPidFile reads at most maxPidFile bytes of a regular file. Other files, such as
// pipes and devices, could block the agent.
func readPidFile(path string) (text []byte, written time.Time, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, time.Time{}, explainOpen(err)
	}
	if !info.Mode().IsRegular() {
		return nil, time.Time{}, fmt.Errorf("it is not a regular file but %s", info.Mode().Type())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, time.Time{}, explainOpen(err)
	}
	defer f.Close()
	text, err = io.ReadAll(io.LimitReader(f, maxPidFile))
	return text, info.ModTime(), err
}

func fileWritten(path string) time.Time { return pidFileWritten(path) }

func pidFileWritten(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// RenameInDir renames a file within its directory, and replaces an existing file called name.
func RenameInDir(path, name string) error {
	return os.Rename(path, filepath.Join(filepath.Dir(path), name))
}

func explainOpen(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errNoPidFile
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("the agent's user may not read it: %w", os.ErrPermission)
	}
	return err
}

// diskTrouble reports whether the disk or the file server failed, or another process
// has locked the file, so that its content is unknown.
func diskTrouble(err error) bool {
	for _, trouble := range []error{
		windows.ERROR_SHARING_VIOLATION, windows.ERROR_LOCK_VIOLATION, windows.ERROR_CRC, windows.ERROR_IO_DEVICE,
		windows.ERROR_NOT_READY, windows.ERROR_BAD_NETPATH, windows.ERROR_NETNAME_DELETED, windows.ERROR_UNEXP_NET_ERR,
	} {
		if errors.Is(err, trouble) {
			return true
		}
	}
	return false
}
