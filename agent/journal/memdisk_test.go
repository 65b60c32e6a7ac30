package journal

import (
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// memDisk is a disk in memory, on which a journal can be opened thousands of
// times. One goroutine may use it.
type memDisk map[string]*memFile

type memFile struct{ data []byte }

// clone returns the contents of the disk after a restart.
func (d memDisk) clone() memDisk {
	c := memDisk{}
	for name, f := range d {
		c[name] = &memFile{slices.Clone(f.data)}
	}
	return c
}

func (memDisk) MkdirAll(string) error { return nil }
func (memDisk) SyncDir(string) error  { return nil }

func (d memDisk) List(string) ([]string, error) {
	names := slices.Sorted(maps.Keys(d))
	for i := range names {
		names[i] = filepath.Base(names[i])
	}
	return names, nil
}

func (d memDisk) Open(name string, flag int) (file, error) {
	f, ok := d[name]
	switch {
	case !ok && flag&os.O_CREATE == 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case !ok:
		f = &memFile{}
		d[name] = f
	case flag&os.O_TRUNC != 0:
		f.data = nil
	}
	return f, nil
}

func (d memDisk) Is(name string, f file) (bool, error) { return d[name] == f, nil }

func (d memDisk) Rename(from, to string) error {
	d[to] = d[from]
	delete(d, from)
	return nil
}

func (d memDisk) Remove(name string) error {
	delete(d, name)
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	if missing := int(off) + len(p) - len(f.data); missing > 0 {
		f.data = append(f.data, make([]byte, missing)...)
	}
	return copy(f.data[off:], p), nil
}

func (f *memFile) Truncate(size int64) error {
	if int(size) < len(f.data) {
		f.data = f.data[:size]
	}
	return nil
}

func (f *memFile) Size() (int64, error) { return int64(len(f.data)), nil }
func (f *memFile) Sync() error          { return nil }
func (f *memFile) Close() error         { return nil }

// memLimits returns limits without a disk reserve: memory does not get full.
func memLimits() limits {
	l := defaultLimits()
	l.reserveBytes = 0
	return l
}
