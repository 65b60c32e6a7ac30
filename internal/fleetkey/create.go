package fleetkey

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet/internal/datafile"
)

// heading is the first line of a ring's file.
const heading = "# Keys of a procfleet fleet. Any reader of this file can command every host.\n"

// Text returns the content of the file.
func (f *File) Text() ([]byte, error) {
	text, err := yaml.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("fleet keys: %w", err)
	}
	return append([]byte(heading), text...), nil
}

// NewKeyID returns a key id made of the current second.
func NewKeyID(now time.Time) string { return now.UTC().Format("20060102-150405") }

// Create creates a ring's file with one new key and mode 0600, atomically. If the
// file exists, Create leaves it unchanged, and the error wraps [os.ErrExist].
func Create(path string) error {
	key, err := NewKey(NewKeyID(time.Now()))
	if err != nil {
		return err
	}
	text, err := (&File{Keys: []Key{key}}).Text()
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Link(file.Name(), path) // fails if path exists, unlike a rename
	}
	if err = errors.Join(err, os.Remove(file.Name())); err != nil {
		return err
	}
	return datafile.SyncDir(filepath.Dir(path))
}
