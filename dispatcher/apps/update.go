package apps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/procfleet/procfleet/internal/datafile"
)

// Update changes the file at a path, which is made if it is missing, mode
// 0600. Whoever reads it meanwhile, and whoever finds it after a crash, sees
// the old file or the new one. Updates by several processes come one after
// the other. If change returns an error nothing is written.
func Update(path string, change func(*File) error) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	lock, err := openLock(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := datafile.Lock(lock); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
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
	if err := replace(path, text, old); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// replace writes a new file beside the old one and lets it take its place.
func replace(path string, text []byte, old os.FileInfo) error {
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
	err = errors.Join(err, belong(file, old), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return datafile.SyncDir(filepath.Dir(path))
}
