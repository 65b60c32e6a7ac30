package procop

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

// maxOutput is the size, in bytes, at which an output file that a daemon keeps open
// is truncated.
const maxOutput = 16 << 20

// Outputs manages the files that receive the output of commands. A daemon that was started
// with such a file keeps the file open for life. The file must then keep its name, or it
// could be neither read nor truncated.
type Outputs struct {
	dir  string
	log  logrus.FieldLogger
	next atomic.Int64 // starts at the current time, so that no name is used twice

	inUse sync.Map // paths of discarded files that a process has open
}

// NewOutputs returns the outputs in the folder dir.
func NewOutputs(dir string, log logrus.FieldLogger) *Outputs {
	o := &Outputs{dir: dir, log: log}
	o.next.Store(time.Now().UnixNano())
	return o
}

// Path returns the path of a new output file for a command with this mark. It creates the
// folder if missing. An error is not returned here: opening the file reports it.
func (o *Outputs) Path(mark string) string {
	_ = os.MkdirAll(o.dir, 0o700)
	return filepath.Join(o.dir, fmt.Sprintf("op-%s-%d.out", mark, o.next.Add(1)))
}

// Discard removes the output file of a command that has ended. A file that a process has
// open is removed by Trim later.
func (o *Outputs) Discard(path string) {
	if proc.OutputHeld(path) {
		o.inUse.Store(path, nil)
		return
	}
	o.remove(path)
}

func (o *Outputs) remove(path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.log.WithError(err).Warn("output file not removed")
	}
}

// Recover discards the output files of an earlier agent process.
func (o *Outputs) Recover() error {
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return fmt.Errorf("read the run folder: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "op-") && strings.HasSuffix(entry.Name(), ".out") {
			o.Discard(filepath.Join(o.dir, entry.Name()))
		}
	}
	return nil
}

// Trim truncates discarded files larger than maxOutput, and removes those that no process
// has open.
func (o *Outputs) Trim() {
	for key := range o.inUse.Range {
		path, _ := key.(string)
		if !proc.OutputHeld(path) {
			o.remove(path)
			o.inUse.Delete(path)
		} else if _, err := proc.TrimOutput(path, maxOutput); err != nil {
			o.log.WithError(err).Warn("output file not truncated")
		}
	}
}
