package journal

import (
	"io"
	"os"

	"github.com/procfleet/procfleet/internal/datafile"
)

// disk is the part of a file system that the journal uses. Tests replace it by a disk that
// fails.
type disk interface {
	MkdirAll(dir string) error
	List(dir string) ([]string, error)
	Open(name string, flag int) (file, error)
	// Is reports whether name is still the name of the open file f.
	Is(name string, f file) (bool, error)
	Rename(from, to string) error
	Remove(name string) error
	// SyncDir makes the directory entries of dir durable.
	SyncDir(dir string) error
}

type file interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Size() (int64, error)
	Close() error
}

type osDisk struct{}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (osDisk) MkdirAll(dir string) error    { return os.MkdirAll(dir, 0o700) }
func (osDisk) Rename(from, to string) error { return os.Rename(from, to) }
func (osDisk) Remove(name string) error     { return os.Remove(name) }

func (osDisk) Is(name string, f file) (bool, error) {
	mine, ok := f.(osFile)
	if !ok {
		return false, nil
	}
	ours, err := mine.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(name)
	return err == nil && os.SameFile(there, ours), err
}

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
	f, err := datafile.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osDisk) SyncDir(dir string) error { return datafile.SyncDir(dir) }
