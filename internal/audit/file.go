package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/procfleet/procfleet/internal/datafile"
)

// File appends records to a file with mode 0600. To rotate the file, rename it:
// the next record creates a new one.
type File struct {
	path string
	file *os.File // nil until opened, and after a failure
	torn bool     // the file may end in the middle of a line
	buf  []byte
}

// OpenFile opens or creates a file; its folder must exist.
func OpenFile(path string) (*File, error) {
	f := &File{path: filepath.Clean(path)}
	if err := f.open(); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return f, nil
}

// Name implements [Sink].
func (f *File) Name() string { return "file" }

// HasTaskEvents implements [Sink].
func (f *File) HasTaskEvents() bool { return false }

// Keep implements [Sink]: it appends all lines in one write, and syncs the file if
// awaited.
func (f *File) Keep(_ context.Context, lines []Line, awaited bool) error {
	if err := f.open(); err != nil {
		return err
	}
	f.buf = f.buf[:0]
	if f.torn {
		f.buf = append(f.buf, '\n')
	}
	for i := range lines {
		f.buf = append(append(f.buf, lines[i].JSON...), '\n')
	}
	_, err := f.file.Write(f.buf)
	if err == nil && awaited {
		err = f.file.Sync()
	}
	if err != nil { // after a failed sync the content is unknown: reopen the file
		err = errors.Join(err, f.Close())
		return err
	}
	f.torn = false
	return nil
}

// Close closes the file; the next Keep opens it again.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

// open opens the file unless the open file still has the configured name.
func (f *File) open() error {
	if f.file != nil {
		if f.named() {
			return nil
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(f.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if f.torn, err = endsTorn(file); err == nil {
		err = datafile.SyncDir(filepath.Dir(f.path))
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file = file
	return nil
}

// named reports whether the open file still has the configured name.
func (f *File) named() bool {
	open, err := f.file.Stat()
	if err != nil {
		return false
	}
	current, err := os.Stat(f.path)
	return err == nil && os.SameFile(open, current)
}

// endsTorn reports whether a file ends in the middle of a line, as after a crash
// during a write.
func endsTorn(file *os.File) (bool, error) {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return false, err
	}
	var last [1]byte
	if _, err := file.ReadAt(last[:], info.Size()-1); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return last[0] != '\n', nil
}
