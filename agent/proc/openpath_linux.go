package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is the maximum number of symbolic links in a path, as in the kernel.
const maxLinks = 40

// openPath opens the file of an absolute path without reading or writing it
// (O_PATH): opening a FIFO would wake its writer, and opening a watchdog device
// starts it.
//
// The agent is usually root, and accounts can create symbolic links in their directories at
// any moment. A link owned by root or the agent's user is always followed, any other link
// only to a file of the same owner. Otherwise an account could make root read or rename
// files of other accounts.
func openPath(path string) (*os.File, error) {
	file, err := openat2(path)
	if err == nil {
		return file, nil
	}
	if !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) { // EPERM: a seccomp filter that does not know openat2
		return nil, err
	}
	return walk(path)
}

// openat2 opens a path without symbolic links. If the path has one, it returns ELOOP.
func openat2(path string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := retryEINTR(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, &how) })
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// walk opens the path element by element and follows the links that openPath permits.
func walk(path string) (*os.File, error) {
	at, err := openRoot()
	if err != nil {
		return nil, err
	}
	defer func() { at.Close() }()
	var foreign *unix.Stat_t // the last link that is neither root's nor the agent's
	rest, links := elements(path), 0
	for len(rest) > 0 {
		next, st, err := step(at, rest[0])
		if err != nil {
			return nil, err
		}
		rest = rest[1:]
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			at.Close()
			at = next
			continue
		}
		target, err := linkTarget(next)
		next.Close()
		if err != nil {
			return nil, err
		}
		if links++; links > maxLinks {
			return nil, unix.ELOOP
		}
		if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			if foreign != nil && foreign.Uid != st.Uid {
				return nil, foreignLink(foreign, &st)
			}
			foreign = &st
		}
		rest = append(elements(target), rest...)
		if filepath.IsAbs(target) {
			at.Close()
			if at, err = openRoot(); err != nil {
				return nil, err
			}
		}
	}
	if err := checkForeign(foreign, at); err != nil {
		return nil, err
	}
	found := at
	at = nil // Close of a nil file does nothing
	return found, nil
}

func openRoot() (*os.File, error) { return openFile("/", unix.O_PATH|unix.O_DIRECTORY) }

func elements(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// step opens the element called name of the directory at, without following a symbolic link.
func step(at *os.File, name string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat(int(at.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, st, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), filepath.Join(at.Name(), name)), st, nil
}

func linkTarget(link *os.File) (string, error) {
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(link.Fd()), "", text)
	return string(text[:n]), err
}

// checkForeign returns an error if link leads to a file of another owner. link is the last
// symbolic link that belongs to neither root nor the agent's user; nil = none.
func checkForeign(link *unix.Stat_t, file *os.File) error {
	if link == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return err
	}
	if st.Uid != link.Uid {
		return foreignLink(link, &st)
	}
	return nil
}

func foreignLink(link, file *unix.Stat_t) error {
	return fmt.Errorf("a symbolic link of uid %d leads to a file of uid %d, and is not followed: %w", link.Uid, file.Uid, os.ErrPermission)
}

// openRegular opens a regular file for reading, and no other file.
func openRegular(path string) (*os.File, error) {
	file, err := openPath(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is not a regular file but %s", info.Mode().Type())
	}
	// Open by descriptor: the path may lead to another file by now.
	return openFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
}

func openFile(path string, flags int) (*os.File, error) {
	fd, err := retryEINTR(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// RenameInDir renames a file within its directory, and replaces an existing file called name.
func RenameInDir(path, name string) error {
	folder, err := openPath(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	at := int(folder.Fd())
	return unix.Renameat(at, filepath.Base(path), at, name)
}
