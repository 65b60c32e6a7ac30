//go:build unix

package datafile

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// Lock waits for the exclusive lock of a file. The lock ends when the file is
// closed or this process ends.
func Lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX) }

// TryLock is Lock without waiting: it returns ErrHeld.
func TryLock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrHeld
	}
	return err
}

// SyncDir makes the names in a directory durable: that files were made,
// renamed or removed there.
func SyncDir(dir string) error {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Open is [os.OpenFile] with mode 0600: an open file can be renamed and removed.
func Open(name string, flag int) (*os.File, error) {
	return os.OpenFile(filepath.Clean(name), flag, 0o600)
}
