//go:build unix

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/uuid"

	"github.com/procfleet/procfleet/agent/journal"
)

// folder is the agent's data on disk, locked.
type folder struct {
	dir      string
	lock     *os.File
	instance string
}

// openFolder makes the folder if it is missing and locks it against other
// agents. Programs that the agent runs do not inherit the lock.
func openFolder(dir string) (*folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "run")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("data folder: %w", err)
		}
	}
	lock, err := lockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("data folder %s: %w", dir, err)
	}
	f := &folder{dir: dir, lock: lock}
	if f.instance, err = f.instanceID(); err != nil {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", dir, err), f.Close())
	}
	return f, nil
}

func (f *folder) journal() string { return filepath.Join(f.dir, "journal") }
func (f *folder) run() string     { return filepath.Join(f.dir, "run") }

// Close releases the lock.
func (f *folder) Close() error { return f.lock.Close() }

// lockFile locks a file until it is closed, and leaves the own pid in it for
// whoever is refused.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Clean(name), os.O_RDWR|os.O_CREATE, 0o600) // close-on-exec
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("in use by another procfleet agent (%s); stop it or give this one another --data", holder(f))
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

// instanceID reads the folder's instance id, or makes one. The id stands for
// what is remembered here, so it does not outlive the journal. One that
// cannot be read is an error and not replaced: servers would take it for a
// loss of everything.
func (f *folder) instanceID() (string, error) {
	name := filepath.Join(f.dir, "instance")
	remembers, err := journal.Exists(f.journal())
	if err != nil {
		return "", err
	}
	if !remembers {
		return newInstanceID(f.dir, name)
	}
	data, err := os.ReadFile(filepath.Clean(name))
	if errors.Is(err, fs.ErrNotExist) {
		return newInstanceID(f.dir, name)
	}
	if err != nil {
		return "", err
	}
	id, err := uuid.Parse(strings.TrimSpace(string(data)))
	if err != nil {
		return "", fmt.Errorf("%s holds no instance id (%w); move the whole folder away to begin anew", name, err)
	}
	return id.String(), nil
}

func newInstanceID(dir, name string) (string, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return "", err
	}
	tmp := name + ".tmp"
	if err := writeDurably(tmp, id.String()+"\n"); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, name); err != nil {
		return "", err
	}
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return "", err
	}
	return id.String(), errors.Join(d.Sync(), d.Close())
}

func writeDurably(name, text string) error {
	f, err := os.OpenFile(filepath.Clean(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}
