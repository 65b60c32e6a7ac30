package journal

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// disk is the part of a file system that the journal uses; tests put one that
// fails in its place.
type disk interface {
	MkdirAll(dir string) error
	List(dir string) ([]string, error)
	Open(name string, flag int) (file, error)
	Stat(name string) (fs.FileInfo, error)
	Rename(from, to string) error
	Remove(name string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
}

type file interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Stat() (fs.FileInfo, error)
	Close() error
}

type osDisk struct{}

func (osDisk) MkdirAll(dir string) error             { return os.MkdirAll(dir, 0o700) }
func (osDisk) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }
func (osDisk) Rename(from, to string) error          { return os.Rename(from, to) } //nolint:gosec // both are in the journal's own folder
func (osDisk) Remove(name string) error              { return os.Remove(name) }

func (osDisk) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (osDisk) Open(name string, flag int) (file, error) {
	f, err := os.OpenFile(filepath.Clean(name), flag, 0o600)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (osDisk) SyncDir(dir string) error {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
