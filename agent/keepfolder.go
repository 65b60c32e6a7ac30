package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/datafile"
)

// folderTick is how often the agent looks whether its data folder is there.
const folderTick = 5 * time.Second

// keepFolder makes the data folder again when somebody deletes it under the
// running agent, until ctx ends.
func (s *session) keepFolder(ctx context.Context) {
	tick := time.NewTicker(folderTick)
	defer tick.Stop()
	for trouble := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		again, err := s.folder.restore()
		switch {
		case err != nil && err.Error() != trouble:
			s.cfg.Log.WithError(err).Error("data folder deleted and not recreated yet")
		case again:
			s.cfg.Log.WithField("folder", s.folder.dir).Warn("data folder deleted, recreated")
		}
		if trouble = ""; err != nil {
			trouble = err.Error()
		}
		if errors.Is(err, errInUse) {
			s.events.tell(agentproto.Event{
				Kind: agentproto.EventTwoAgents, Message: "the data folder was deleted and another agent has made it again: " + err.Error(),
			})
		}
	}
}

// restore makes again what is missing of the folder: the folder itself, the
// lock, the instance id. It reports whether anything was.
func (f *folder) restore() (again bool, err error) {
	if err := f.makeFolders(); err != nil {
		return false, err
	}
	there, err := f.locked()
	if err != nil {
		return false, err
	}
	if !there {
		lock, err := lockFile(f.lockPath())
		if err != nil {
			return false, fmt.Errorf("data folder %s: %w", f.dir, err)
		}
		f.mu.Lock()
		old := f.lock
		f.lock = lock
		f.mu.Unlock()
		_ = old.Close() // it locked what is no more
	}
	_, err = os.Lstat(f.instancePath())
	if errors.Is(err, fs.ErrNotExist) {
		err := saveInstance(f.instancePath(), f.instance)
		if err == nil {
			err = f.bind()
		}
		return true, err
	}
	return !there, err
}

func (f *folder) makeFolders() error {
	err := os.MkdirAll(f.dir, 0o700)
	if err == nil { // what is in the journal is carried out
		err = datafile.OwnFolder(f.dir)
	}
	if err == nil {
		err = os.MkdirAll(f.run(), 0o700)
	}
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	return nil
}

// locked reports whether the lock that others see is the one that is held.
func (f *folder) locked() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	held, err := f.lock.Stat()
	if err != nil {
		return false, err
	}
	seen, err := os.Stat(f.lockPath())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(held, seen), err
}

func (f *folder) lockPath() string     { return filepath.Join(f.dir, "lock") }
func (f *folder) instancePath() string { return filepath.Join(f.dir, "instance") }
