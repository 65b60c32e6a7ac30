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

// openLock opens what to lock while a file of the folder is changed: the folder
// itself, so that nothing is left behind.
func openLock(folder string) (*os.File, error) { return os.Open(folder) } //nolint:gosec // the data folder

// openAtOnce opens a file to read it. A pipe is opened without waiting for its
// writer, and a terminal does not become this process's own, so that what a
// path leads to can be looked at first.
func openAtOnce(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0) //nolint:gosec // a file that the operator names
}

// OwnFolder refuses a folder in which accounts other than this process's own and
// root may write, and a folder that they could replace because they own or may
// write a folder or symbolic link on the way to it. Sticky folders such as /tmp
// are accepted on the way: there only its owner may replace an entry. A group may
// write unless this process is root: many users have a group of their own.
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

// maxLinks is how many symbolic links a path may have, as on Linux.
const maxLinks = 40

// ownWay checks every folder and symbolic link that the kernel passes on the way
// to path.
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

// replaceable rejects a folder or symbolic link on the way to path by which
// another account could replace path.
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

// writableByOthers returns this process's user, and the bits of a mode with which
// other accounts may write.
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

// belong gives the new file the owner of the old one, and its group's right to
// read; a file that is made by root belongs to who owns the folder. So root can
// keep the file of a dispatcher that runs as another user.
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
