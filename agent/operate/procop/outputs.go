package procop

import (
	"crypto/sha256"
	"encoding/hex"
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

// Sizes of the output of a process that keeps its output file open for life, in bytes. Above
// maxOutput on disk, or its part of hostOutput, all but the end of the file is given up.
const (
	maxOutput  = 16 << 20
	keptOutput = 8 << 20
	hostOutput = 1 << 30 // of all processes of the host
	lastOutput = 64 << 10
)

// Outputs manages the files that receive the output of commands:
//
//	op-MARK-N.out            a command other than a start
//	out-KEY-N.out            a process and its start command
//	last-KEY-N-OFFSET.out    the end, from this offset, of the output of a process that has ended
//
// KEY is a hash of the process key. A daemon that was started with such a file keeps the file
// open for life. The file must then keep its name, or it could be neither read nor shortened.
type Outputs struct {
	dir  string
	log  logrus.FieldLogger
	next atomic.Int64 // starts at the current time, so that no name is used twice

	inUse sync.Map // paths of discarded files that a process has open, with their *growth
}

// NewOutputs returns the outputs in the folder dir.
func NewOutputs(dir string, log logrus.FieldLogger) *Outputs {
	o := &Outputs{dir: dir, log: log}
	o.next.Store(time.Now().UnixNano())
	return o
}

// Path returns the path of a new output file for a command with this mark. It creates the
// folder if missing. An error is not returned here: opening the file reports it.
func (o *Outputs) Path(mark string) string { return o.path("op-" + mark) }

// ProcessPath is Path for a command that starts the process of a key.
func (o *Outputs) ProcessPath(key string) string { return o.path("out-" + hashOf(key)) }

func (o *Outputs) path(prefix string) string {
	_ = os.MkdirAll(o.dir, 0o700)
	return filepath.Join(o.dir, fmt.Sprintf("%s-%d.out", prefix, o.next.Add(1)))
}

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

// Discard gives up the output file of a command that has ended. It removes the file, but keeps
// the end of the output of a process. A file that a process has open is handled by Trim later.
func (o *Outputs) Discard(path string) {
	if proc.OutputHeld(path) {
		o.inUse.Store(path, &growth{})
		return
	}
	o.discard(path)
}

func (o *Outputs) discard(path string) {
	file, is := parseOutput(path)
	if !is || file.last {
		o.remove(path)
		return
	}
	if err := o.keepEnd(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.log.WithError(err).Warn("end of output not stored")
		o.remove(path)
	}
}

// keepEnd replaces the output file of a process that has ended by its end, and removes the end
// of earlier processes.
func (o *Outputs) keepEnd(file outputFile) error {
	info, err := os.Lstat(file.path)
	if err != nil {
		return err
	}
	earlier := o.filesOf(file.hash)
	offset := max(0, info.Size()-lastOutput)
	last := filepath.Join(o.dir, fmt.Sprintf("last-%s-%d-%d.out", file.hash, file.number, offset))
	switch {
	case info.Size() == 0:
		o.remove(file.path)
		return nil
	case offset == 0:
		err = os.Rename(file.path, last)
	default:
		if err = proc.CopyEnd(last, file.path, offset); err == nil {
			err = errors.Join(os.Chtimes(last, time.Time{}, info.ModTime()), os.Remove(file.path))
		}
	}
	if err != nil {
		return err
	}
	for _, old := range earlier {
		if old.last && old.number < file.number {
			o.remove(old.path)
		}
	}
	return nil
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
		name := entry.Name()
		if strings.HasSuffix(name, ".out") && (strings.HasPrefix(name, "op-") || strings.HasPrefix(name, "out-")) {
			o.Discard(filepath.Join(o.dir, name))
		}
	}
	return nil
}

// Trim shortens discarded files that processes have open, and discards the others. It records
// how the files grow.
func (o *Outputs) Trim() {
	limit := int64(maxOutput)
	n := int64(0)
	for range o.inUse.Range {
		n++
	}
	if n > hostOutput/maxOutput {
		limit = max(hostOutput/n, 2*lastOutput)
	}
	for key, value := range o.inUse.Range {
		path, _ := key.(string)
		if g, ok := value.(*growth); ok {
			g.record(path)
		}
		if !proc.OutputHeld(path) {
			o.discard(path)
			o.inUse.Delete(path)
		} else if err := proc.ShortenOutput(path, limit, min(keptOutput, limit/2)); err != nil {
			o.log.WithError(err).Warn("output file not shortened")
		}
	}
}
