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

var errNoPidFile = errors.New("it does not exist")

// files is what a target's paths say, read under the watchdog.
type files struct {
	setup   string // setup path with symbolic links resolved
	pid     int    // 0 = no usable pid
	written time.Time
	err     error // why there is no usable pid
}

// blocked reports whether the pid file could not be read, as opposed to being
// read and useless.
func (f files) blocked() bool {
	return f.err != nil && (errors.Is(f.err, errFileBlocked) || errors.Is(f.err, os.ErrPermission) ||
		errors.Is(f.err, unix.EIO) || errors.Is(f.err, unix.ESTALE) || exhausted(f.err))
}

func readFiles(setupPath, pidPath string) files {
	var got files
	if setupPath != "" {
		got.setup = filepath.Clean(setupPath)
		if resolved, err := filepath.EvalSymlinks(setupPath); err == nil {
			got.setup = resolved
		}
	}
	if pidPath == "" {
		got.err = errNoPidFile
		return got
	}
	got.pid, got.written, got.err = readPidFile(pidPath)
	return got
}

// readPidFile opens without blocking, so that a FIFO or a device in the file's
// place cannot hang the agent, and reads a bounded part of a regular file only.
func readPidFile(path string) (pid int, written time.Time, err error) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	})
	if err != nil {
		return 0, time.Time{}, explainOpen(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, time.Time{}, err
	}
	if !info.Mode().IsRegular() {
		return 0, time.Time{}, fmt.Errorf("it is not a regular file but %s", info.Mode().Type())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxPidFile))
	if err != nil {
		return 0, time.Time{}, err
	}
	pid, err = parsePidFile(text)
	return pid, info.ModTime(), err
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
