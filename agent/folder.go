package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/datafile"
)

// folder is the agent's data folder, which it has locked. It is not safe for concurrent use.
type folder struct {
	dir      string
	instance string
	copied   string // report of [folder.abandonCopy]; "" if the folder was not copied
	lock     *os.File
}

// openFolder creates the folder if it is missing and locks it against other agents.
// Commands of the agent do not inherit the lock.
func openFolder(dir string) (*folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	f := &folder{dir: dir}
	if err := f.makeFolders(); err != nil {
		return nil, err
	}
	if f.lock, err = lockFile(f.lockPath()); err != nil {
		return nil, fmt.Errorf("data folder %s: %w", dir, err)
	}
	if f.instance, err = f.instanceID(); err != nil {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", dir, err), f.Close())
	}
	if err := f.abandonCopy(); err != nil {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", dir, err), f.Close())
	}
	return f, nil
}

func (f *folder) journal() string { return filepath.Join(f.dir, "journal") }
func (f *folder) run() string     { return filepath.Join(f.dir, "run") }

// Close releases the lock.
func (f *folder) Close() error { return f.lock.Close() }

// errInUse is wrapped when another agent holds the lock.
var errInUse = errors.New("in use by another procfleet agent")

// lockFile locks a file until it is closed. It writes the pid of this process into the
// file, for the error message of other agents.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Clean(name), os.O_RDWR|os.O_CREATE, 0o600) // close-on-exec
	if err != nil {
		return nil, err
	}
	if err := datafile.LockSoon(f); err != nil {
		defer f.Close()
		if errors.Is(err, datafile.ErrHeld) {
			return nil, fmt.Errorf("%w (%s); stop it or give this one another --data", errInUse, holder(f))
		}
		return nil, fmt.Errorf("lock: %w", err)
	}
	pid := fmt.Appendf(nil, "%d\n", os.Getpid())
	if _, err := f.WriteAt(pid, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := f.Truncate(int64(len(pid))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func holder(f *os.File) string {
	text := make([]byte, 32)
	n, _ := f.ReadAt(text, 0) // a short read is the normal case
	if pid := strings.TrimSpace(string(text[:n])); pid != "" {
		return "pid " + pid
	}
	return "pid unknown"
}

// instanceID returns the folder's instance id and creates one if it is missing. The id
// belongs to the journal, so it is replaced if the journal is missing. An unreadable id is
// an error: with a new id servers would end all open items of the instance.
func (f *folder) instanceID() (string, error) {
	name := f.instancePath()
	exists, err := journal.Exists(f.journal())
	if err != nil {
		return "", err
	}
	if !exists {
		return newInstanceID(name)
	}
	data, err := os.ReadFile(filepath.Clean(name))
	if errors.Is(err, fs.ErrNotExist) {
		return newInstanceID(name)
	}
	if err != nil {
		return "", err
	}
	id, err := uuid.Parse(strings.TrimSpace(string(data)))
	if err != nil {
		return "", fmt.Errorf("%s contains no instance id (%w); rename the whole folder to start a new instance", name, err)
	}
	return id.String(), nil
}

func newInstanceID(name string) (string, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return "", err
	}
	return id.String(), datafile.Replace(name, fmt.Appendln(nil, id))
}

// folderTick is the interval at which the agent checks that its data folder exists.
const folderTick = 5 * time.Second

// recreateFolder recreates the data folder whenever it is deleted, until ctx ends.
func (s *session) recreateFolder(ctx context.Context) {
	for reported := ""; sleep(ctx, folderTick); {
		again, err := s.folder.restore()
		switch {
		case err != nil && err.Error() != reported:
			s.log.WithError(err).Error("data folder missing, recreation failed")
		case again:
			s.log.WithField("folder", s.folder.dir).Warn("data folder missing, recreated")
		}
		if reported = ""; err != nil {
			reported = err.Error()
		}
		if errors.Is(err, errInUse) {
			s.events.emit(agentproto.Event{
				Kind: agentproto.EventTwoAgents, Message: "the data folder was deleted and another agent has recreated it: " + err.Error(),
			})
		}
	}
}

// restore recreates the folder, its lock and the instance id if they are missing. again
// is true if any of them was missing.
func (f *folder) restore() (again bool, err error) {
	if err := f.makeFolders(); err != nil {
		return false, err
	}
	locked, err := f.locked()
	if err != nil {
		return false, err
	}
	if !locked {
		lock, err := lockFile(f.lockPath())
		if err != nil {
			return false, fmt.Errorf("data folder %s: %w", f.dir, err)
		}
		_ = f.lock.Close() // lock of the deleted file
		f.lock = lock
	}
	_, err = os.Lstat(f.instancePath())
	if errors.Is(err, fs.ErrNotExist) {
		err := datafile.Replace(f.instancePath(), fmt.Appendln(nil, f.instance))
		if err == nil {
			err = f.bind()
		}
		return true, err
	}
	return !locked, err
}

func (f *folder) makeFolders() error {
	err := os.MkdirAll(f.dir, 0o700)
	if err == nil { // other accounts must not write operations into the journal
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

// locked reports whether the lock file in the folder is the file that this agent has locked.
func (f *folder) locked() (bool, error) {
	own, err := f.lock.Stat()
	if err != nil {
		return false, err
	}
	present, err := os.Stat(f.lockPath())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(own, present), err
}

func (f *folder) lockPath() string     { return filepath.Join(f.dir, "lock") }
func (f *folder) instancePath() string { return filepath.Join(f.dir, "instance") }
