package operate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/proc"
)

// maxOutput is the room, in bytes, at which an output file that a daemon keeps
// open is emptied.
const maxOutput = 16 << 20

// outputs looks after the files that receive the output of commands. A daemon
// that was started with one keeps it open for life; its name must stay, or the
// daemon would fill a file that nobody can see or empty.
type outputs struct {
	dir  string
	log  logrus.FieldLogger
	next atomic.Int64 // begins at the time, so that no name is used twice

	mu   sync.Mutex
	held map[string]bool
}

func newOutputs(dir string, log logrus.FieldLogger) *outputs {
	o := &outputs{dir: dir, log: log, held: map[string]bool{}}
	o.next.Store(time.Now().UnixNano())
	return o
}

// path is that of a new file for a command with this mark.
// path also makes the folder again should somebody have deleted it; if that
// fails, so does opening the file, which says why.
func (o *outputs) path(mark string) string {
	_ = os.MkdirAll(o.dir, 0o700)
	return filepath.Join(o.dir, fmt.Sprintf("op-%s-%d.out", mark, o.next.Add(1)))
}

// keep removes the file of a command that ended, now or when it is not in use
// any more.
func (o *outputs) keep(path string) {
	if proc.OutputHeld(path) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.held[path] = true
		return
	}
	o.remove(path)
}

func (o *outputs) remove(path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.log.WithError(err).Warn("output file not removed")
	}
}

// adopt takes over the files that an earlier agent process left.
func (o *outputs) adopt() error {
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return fmt.Errorf("read the run folder: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "op-") && strings.HasSuffix(entry.Name(), ".out") {
			o.keep(filepath.Join(o.dir, entry.Name()))
		}
	}
	return nil
}

// trim empties the files that have grown and removes those that nobody has
// open any more.
func (o *outputs) trim() {
	for _, path := range o.list() {
		if !proc.OutputHeld(path) {
			o.remove(path)
			o.forget(path)
			continue
		}
		if _, err := proc.TrimOutput(path, maxOutput); err != nil {
			o.log.WithError(err).Warn("output file not truncated")
		}
	}
}

func (o *outputs) list() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var paths []string
	for path := range o.held {
		paths = append(paths, path)
	}
	return paths
}

func (o *outputs) forget(path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.held, path)
}
