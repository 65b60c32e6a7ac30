package apps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Update changes the file at a path, which is made if it is missing, mode
// 0600. Whoever reads it meanwhile, and whoever finds it after a crash, sees
// the old file or the new one. Updates by several processes come one after
// the other. If change returns an error nothing is written.
func Update(path string, change func(*File) error) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX); err != nil { // until folder is closed
		return fmt.Errorf("lock %s: %w", folder.Name(), err)
	}
	file, old, err := read(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		file = &File{}
		old = nil
	case err != nil:
		return err
	}
	if err := change(file); err != nil {
		return err
	}
	text, err := file.text()
	if err != nil {
		return err
	}
	if _, err := Parse(path, text); err != nil { // what no dispatcher would read is not written
		return fmt.Errorf("the new file would not be understood: %w", err)
	}
	if err := replace(path, text, old, folder); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// replace writes a new file beside the old one and lets it take its place.
func replace(path string, text []byte, old os.FileInfo, folder *os.File) error {
	// One name, which the lock guards: what a kill leaves is used again.
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, belong(file, old, folder), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return folder.Sync()
}

// belong gives the new file the owner of the old one, and its group's right to
// read; a file that is made by root belongs to who owns the folder. So root can
// keep the file of a dispatcher that runs as somebody else.
func belong(file *os.File, old os.FileInfo, folder *os.File) error {
	like := old
	if old == nil {
		var err error
		if like, err = folder.Stat(); err != nil {
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
