//go:build unix

package datafile

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// openLock opens what to lock while a file of the folder is changed: the folder
// itself, so that nothing is left behind.
func openLock(folder string) (*os.File, error) { return os.Open(folder) } //nolint:gosec // the data folder

// openAtOnce opens a file to read it. A pipe is opened without waiting for its
// writer, and a terminal does not become this process's own, so that what a
// path leads to can be looked at first.
func openAtOnce(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0) //nolint:gosec // a file that whoever starts the command names
}

// OwnFolder refuses a folder in which others than this process's user and root
// may put files. A group may, unless this process is root: many users have a
// group of their own.
func OwnFolder(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	own, writable := os.Geteuid(), os.FileMode(0o002)
	if own == 0 {
		writable = 0o022
	}
	if mode := info.Mode().Perm(); mode&writable != 0 {
		return fmt.Errorf("%s has mode %04o: who may write there decides what this process does. Look whether somebody did, then chmod 700 %s", dir, mode, dir)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != own {
		return fmt.Errorf("%s belongs to uid %d, who so decides what this process does, which is uid %d: take another folder, or look into it and chown %d %s",
			dir, st.Uid, own, own, dir)
	}
	return nil
}

// belong gives the new file the owner of the old one, and its group's right to
// read; a file that is made by root belongs to who owns the folder. So root can
// keep the file of a dispatcher that runs as somebody else.
func belong(file *os.File, old os.FileInfo) error {
	like := old
	if old == nil {
		var err error
		if like, err = os.Stat(filepath.Dir(file.Name())); err != nil {
			return err
		}
	}
	mine, err := file.Stat()
	if err != nil {
		return err
	}
	from, ok := like.Sys().(*syscall.Stat_t)
	now, ok2 := mine.Sys().(*syscall.Stat_t)
	if !ok || !ok2 {
		return nil
	}
	if (from.Uid != now.Uid || from.Gid != now.Gid) && (old != nil || os.Geteuid() == 0) {
		if err := file.Chown(int(from.Uid), int(from.Gid)); err != nil {
			return fmt.Errorf("keep its owner: %w", err)
		}
	}
	if old == nil {
		return nil
	}
	return file.Chmod(0o600 | old.Mode().Perm()&0o040)
}
