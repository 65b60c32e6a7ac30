//go:build unix

package datafile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Lock waits for the exclusive lock of a file. The lock is released when the file
// is closed or the process exits.
func Lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX) }

// TryLock is [Lock] without waiting: it returns ErrHeld if the lock is held.
func TryLock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrHeld
	}
	return err
}

// SyncDir makes the creation, renaming and removal of files in a directory
// durable.
func SyncDir(dir string) error {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Open is [os.OpenFile] with mode 0600; the open file can be renamed and removed.
func Open(name string, flag int) (*os.File, error) {
	return os.OpenFile(filepath.Clean(name), flag, 0o600)
}

// openLock opens the file to lock while a file in folder is changed: the folder
// itself, so that no lock file remains.
func openLock(folder string) (*os.File, error) { return os.Open(folder) } //nolint:gosec // folder is the data folder

// openAtOnce opens a file for reading without side effects, so that the caller can
// check its type first: it does not wait for the writer of a pipe, and does not
// make a terminal the controlling terminal.
func openAtOnce(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0) //nolint:gosec // path comes from the operator
}

// OwnFolder rejects a folder that accounts other than root and this process's own
// can write or replace. They can replace it if they own, or may write, a parent
// folder or symbolic link in its path. Sticky parent folders such as /tmp are
// accepted, since only the owner of an entry can replace it there. Group write
// permission is accepted unless this process is root, because many users have a
// group of their own.
func OwnFolder(dir string) error {
	if err := ownItself(dir); err != nil {
		return err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	return ownWay(abs)
}

// maxLinks is the maximum number of symbolic links in a path, as on Linux.
const maxLinks = 40

// ownWay checks every folder and symbolic link that the kernel traverses to resolve
// path.
func ownWay(path string) error {
	at, rest := "/", strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" {
			continue
		}
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		if err := replaceable(path, at, info, info.Mode()&os.ModeSticky == 0); err != nil {
			return err
		}
		next := filepath.Join(at, name)
		if info, err = os.Lstat(next); err != nil {
			return err
		}
		if info.Mode()&os.ModeSymlink == 0 {
			at = next
			continue
		}
		if err := replaceable(path, next, info, false); err != nil {
			return err
		}
		target, err := os.Readlink(next)
		if err != nil {
			return err
		}
		if links++; links > maxLinks {
			return fmt.Errorf("%s: %w", path, syscall.ELOOP)
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return nil
}

// replaceable returns an error if another account could replace path by means of
// the folder or symbolic link at, a part of the path.
func replaceable(path, at string, info os.FileInfo, modeCounts bool) error {
	own, writable := writableByOthers()
	if mode := info.Mode().Perm(); modeCounts && mode&writable != 0 {
		return fmt.Errorf("%s is reached through %s, which has mode %04o: other accounts can replace it. Run chmod go-w %s, or take another folder",
			path, at, mode, at)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != own {
		return fmt.Errorf("%s is reached through %s, which belongs to uid %d: that account can replace it. Run chown -h %d %s, or take another folder",
			path, at, st.Uid, own, at)
	}
	return nil
}

// writableByOthers returns the user of this process, and the mode bits that allow
// other accounts to write.
func writableByOthers() (own int, writable os.FileMode) {
	if own = os.Geteuid(); own == 0 {
		return own, 0o022
	}
	return own, 0o002
}

func ownItself(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	own, writable := writableByOthers()
	if mode := info.Mode().Perm(); mode&writable != 0 {
		return fmt.Errorf("%s has mode %04o: other accounts can write there and control this process. Check its content, then chmod 700 %s", dir, mode, dir)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != own {
		return fmt.Errorf("%s belongs to uid %d, which can control this process of uid %d: take another folder, or check its content and chown %d %s",
			dir, st.Uid, own, own, dir)
	}
	return nil
}

// belong copies the owner, the group and the group's read permission of the old file
// to the new file. Without an old file, a process of root sets the owner of the
// folder. So root can update the files of a dispatcher that runs as another user.
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
			return fmt.Errorf("preserve its owner: %w", err)
		}
	}
	if old == nil {
		return nil
	}
	return file.Chmod(0o600 | old.Mode().Perm()&0o040)
}
