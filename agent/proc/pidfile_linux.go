package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// fileTimeout bounds the reading of a pid file: it may lie on a network file
// system whose server is gone, and such a read cannot be interrupted.
const fileTimeout = 2 * time.Second

// maxStuckReads bounds the goroutines that hanging file systems may hold.
const maxStuckReads = 64

var (
	errFileBlocked = errors.New("the file system did not answer within 2s")
	errNoPidFile   = errors.New("it does not exist")
)

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
		errors.Is(f.err, unix.EIO) || errors.Is(f.err, unix.ESTALE))
}

// fileReader reads files that may hang. A read that outlives the watchdog is
// abandoned, and until it ends its path is answered with errFileBlocked at once,
// so that each path holds at most one goroutine.
type fileReader struct {
	slots chan struct{}

	mu    sync.Mutex
	stuck map[string]bool
}

func newFileReader() *fileReader {
	return &fileReader{slots: make(chan struct{}, maxStuckReads), stuck: map[string]bool{}}
}

func (r *fileReader) read(ctx context.Context, setupPath, pidPath string) files {
	ctx, cancel := context.WithTimeout(ctx, fileTimeout)
	defer cancel()
	key := setupPath + "\x00" + pidPath
	if r.isStuck(key) {
		return files{setup: filepath.Clean(setupPath), err: errFileBlocked}
	}
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return files{setup: filepath.Clean(setupPath), err: errFileBlocked}
	}
	answer := make(chan files, 1)
	go func() {
		defer func() { <-r.slots }()
		answer <- readFiles(setupPath, pidPath)
		r.setStuck(key, false)
	}()
	select {
	case got := <-answer:
		return got
	case <-ctx.Done():
	}
	r.setStuck(key, true)
	select {
	case got := <-answer: // it ended while it was being declared stuck
		r.setStuck(key, false)
		return got
	default:
		return files{setup: filepath.Clean(setupPath), err: errFileBlocked}
	}
}

func (r *fileReader) isStuck(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stuck[key]
}

func (r *fileReader) setStuck(key string, stuck bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stuck {
		r.stuck[key] = true
	} else {
		delete(r.stuck, key)
	}
}

func readFiles(setupPath, pidPath string) files {
	var got files
	if setupPath != "" {
		got.setup = filepath.Clean(setupPath)
		if real, err := filepath.EvalSymlinks(setupPath); err == nil {
			got.setup = real
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
