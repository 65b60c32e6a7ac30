package datafile

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"
)

// Lock waits for the exclusive lock of a file. The lock is released when the file
// is closed or the process exits.
func Lock(f *os.File) error { return lock(f, windows.LOCKFILE_EXCLUSIVE_LOCK) }

// TryLock is [Lock] without waiting: it returns ErrHeld if the lock is held.
func TryLock(f *os.File) error {
	err := lock(f, windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return ErrHeld
	}
	return err
}

// lock locks a byte far beyond the end of the content: a locked byte cannot be
// read, and the content identifies the owner of the lock.
func lock(f *os.File, flags uint32) error {
	offset := windows.Overlapped{OffsetHigh: 1 << 30}
	return windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &offset)
}

// SyncDir does nothing: NTFS makes directory entries durable, and Windows cannot
// open a directory for writing.
func SyncDir(string) error { return nil }

// Open is [os.OpenFile] for a file that can be renamed and removed while it is
// open. It supports O_RDONLY, O_WRONLY, O_RDWR, O_CREATE, O_EXCL and O_TRUNC.
func Open(name string, flag int) (*os.File, error) {
	path, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	access := uint32(windows.GENERIC_READ)
	if flag&(os.O_RDWR|os.O_WRONLY) != 0 {
		access |= windows.GENERIC_WRITE
	}
	const share = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	h, err := windows.CreateFile(path, access, share, nil, disposition(flag), windows.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(h), name), nil
}

// disposition returns the creation disposition of CreateFile for flag.
func disposition(flag int) uint32 {
	switch {
	case flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		return windows.CREATE_NEW
	case flag&(os.O_CREATE|os.O_TRUNC) == os.O_CREATE|os.O_TRUNC:
		return windows.CREATE_ALWAYS
	case flag&os.O_CREATE != 0:
		return windows.OPEN_ALWAYS
	case flag&os.O_TRUNC != 0:
		return windows.TRUNCATE_EXISTING
	}
	return windows.OPEN_EXISTING
}

// openLock opens the file to lock while a file in folder is changed: a lock file,
// because Windows cannot lock a folder.
func openLock(folder string) (*os.File, error) {
	return os.OpenFile(filepath.Join(folder, ".procfleet.lock"), os.O_RDWR|os.O_CREATE, 0o600)
}

// openAtOnce opens a file for reading, which never blocks on Windows.
func openAtOnce(path string) (*os.File, error) { return os.Open(path) }

// belong does nothing: a new file inherits the access list of the folder.
func belong(*os.File, os.FileInfo) error { return nil }

// OwnFolder accepts every folder: access lists restrict the writers.
func OwnFolder(string) error { return nil }
