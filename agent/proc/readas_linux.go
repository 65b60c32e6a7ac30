package proc

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// openAs opens a regular file for reading with the rights of an account.
func openAs(account Account, path string) (*os.File, error) {
	if int(account.UID) == os.Geteuid() {
		return openWithoutLinks(path)
	}
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened)
	go func() {
		// The rights are those of one thread. It is never unlocked, so it ends with this
		// goroutine, and no other goroutine runs with these rights.
		runtime.LockOSThread()
		err := assumeRights(account)
		var file *os.File
		if err == nil {
			file, err = openWithoutLinks(path)
		}
		done <- opened{file, err}
	}()
	o := <-done
	return o.file, o.err
}

// assumeRights gives this thread the rights of an account to open files.
func assumeRights(account Account) error {
	groups := make([]int, len(account.Groups))
	for i, gid := range account.Groups {
		groups[i] = int(gid)
	}
	if err := unix.Setgroups(groups); err != nil { // of this thread only, unlike syscall.Setgroups
		return fmt.Errorf("read files as account %s: %w", account.Name, err)
	}
	for _, set := range []struct {
		id  int
		set func(int) (int, error)
	}{{int(account.GID), unix.SetfsgidRetGid}, {int(account.UID), unix.SetfsuidRetUid}} {
		_, _ = set.set(set.id) // reports no errors, only the id of before
		if now, _ := set.set(-1); now != set.id {
			return fmt.Errorf("read files as account %s: %w", account.Name, unix.EPERM)
		}
	}
	return nil
}

// openWithoutLinks opens a regular file for reading.
func openWithoutLinks(path string) (*os.File, error) {
	at, err := openRoot()
	if err != nil {
		return nil, err
	}
	defer func() { at.Close() }()
	var st unix.Stat_t
	for _, name := range elements(path) {
		next, found, err := step(at, name)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		at.Close()
		if at, st = next, found; st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return nil, fmt.Errorf("%s is a symbolic link, which is not followed", at.Name())
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := openFile(fmt.Sprintf("/proc/self/fd/%d", at.Fd()), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return file, nil
}

// FileNumber identifies a file while it exists.
func FileNumber(file *os.File) (int64, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(file.Fd()), &st)
	return int64(st.Ino & (1<<63 - 1)), err
}
