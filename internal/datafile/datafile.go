// Package datafile adds to package os, for every operating system: file locks
// between processes, durable directory entries, and files with secrets.
package datafile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// ErrHeld means that another process, or another open file of this process, holds
// the lock.
var ErrHeld = errors.New("locked by another process")

// Read reads a file of at most limit bytes. It rejects anything but a regular
// file without blocking: opening a pipe would wait for its writer.
func Read(path string, limit int64) ([]byte, error) {
	text, _, err := read(path, limit, ordinary)
	return text, err
}

// ReadPrivate is [Read] for a file with secrets. It rejects a file that everybody
// can read, or that users other than the owner can write. info describes the file
// that was read or rejected; nil if the file could not be opened.
func ReadPrivate(path string, limit int64) (text []byte, info os.FileInfo, err error) {
	return read(path, limit, private)
}

func read(path string, limit int64, check func(path string, info os.FileInfo) error) (text []byte, info os.FileInfo, err error) {
	file, err := openAtOnce(filepath.Clean(path))
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return nil, nil, err
	}
	if err := check(path, info); err != nil {
		return nil, info, err
	}
	text, err = io.ReadAll(io.LimitReader(file, limit+1))
	switch {
	case err != nil:
		return nil, info, err
	case int64(len(text)) > limit:
		return nil, info, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return text, info, nil
}

// private rejects a file that everybody can read, or that users other than the
// owner can write. Its group may read it, because Kubernetes and systemd units
// provide files to users that do not own them. Windows has no such modes.
func private(path string, info os.FileInfo) error {
	if err := ordinary(path, info); err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o027 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("%s has mode %04o: it contains secrets, and its mode must be 0600, or 0640 for a group that reads it: chmod 600 %s",
			path, mode, path)
	}
	return nil
}

func ordinary(path string, info os.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	return nil
}

// Update changes a file with secrets of at most limit bytes. If the file is
// missing, change receives nil, and the file is created with mode 0600. The
// replacement is atomic, also for readers after a crash, and updates of several
// processes are serialized. If change returns an error, or the old content,
// nothing is written.
func Update(path string, limit int64, change func(text []byte) ([]byte, error)) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	lock, err := openLock(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := Lock(lock); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	text, old, err := ReadPrivate(path, limit)
	switch {
	case errors.Is(err, os.ErrNotExist):
		text, old = nil, nil
	case err != nil:
		return err
	}
	changed, err := change(text)
	if err != nil || old != nil && bytes.Equal(changed, text) {
		return err
	}
	if err := replace(path, changed, old); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Replace writes a file with mode 0600 durably: after a crash the file has either the
// old or the new content. Concurrent calls for one file are not supported.
func Replace(path string, text []byte) error { return replace(path, text, nil) }

// replace writes a new file in the same folder and renames it over the old one.
func replace(path string, text []byte, old os.FileInfo) error {
	// The name is fixed, and callers exclude each other: a leftover of a killed process
	// is overwritten.
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the path is in the data folder
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, belong(file, old), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return SyncDir(filepath.Dir(path))
}

// LockSoon is [Lock] with a time limit of two seconds, after which it returns
// ErrHeld. The locks of a killed program may persist for a moment, until a child
// process that inherited its open files has executed another program.
func LockSoon(f *os.File) error {
	const moment, pause = 2 * time.Second, 20 * time.Millisecond
	for end := time.Now().Add(moment); ; <-time.After(pause) {
		err := TryLock(f)
		if !errors.Is(err, ErrHeld) || time.Now().After(end) {
			return err
		}
	}
}
