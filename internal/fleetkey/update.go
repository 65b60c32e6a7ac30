package fleetkey

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet/internal/datafile"
)

// Update changes a ring's file, which must exist; see [datafile.Update]. If change
// returns an error, or the result is not a valid ring, nothing is written. The
// errors contain no secret.
func Update(path string, change func(*File) error) error {
	return datafile.Update(path, maxFile, func(text []byte) ([]byte, error) {
		if text == nil {
			return nil, fmt.Errorf("there is no %s: make it with `procfleet fleet-key create --fleet-key %s`: %w", path, path, os.ErrNotExist)
		}
		var f File
		if err := yaml.UnmarshalStrict(text, &f); err != nil {
			return nil, fmt.Errorf("%s: %w", path, errNoRing)
		}
		if err := change(&f); err != nil {
			return nil, err
		}
		if _, err := f.Ring(); err != nil {
			return nil, err
		}
		return f.Text()
	})
}

// Has reports whether the file contains a key with the id.
func (f *File) Has(id string) bool {
	return slices.ContainsFunc(f.Keys, func(k Key) bool { return k.ID == id })
}

// Add adds k as the newest key.
func (f *File) Add(k Key) { f.Keys = append([]Key{k}, f.Keys...) }

// Remove removes a key and reports whether it existed.
func (f *File) Remove(id string) bool {
	for i := range f.Keys {
		if f.Keys[i].ID == id {
			f.Keys = append(f.Keys[:i], f.Keys[i+1:]...)
			return true
		}
	}
	return false
}

// Revoke revokes the keys of a host ("<cloud>:<ip>") and returns its new
// generation.
func (f *File) Revoke(host string) int {
	if f.Generations == nil {
		f.Generations = map[string]int{}
	}
	f.Generations[host]++
	return f.Generations[host]
}

// Generation returns how often a host was revoked; 0 if the ring is nil.
func (r *Ring) Generation(host string) int {
	if r == nil {
		return 0
	}
	return r.generations[host]
}

// IDs returns the ids of the keys, newest first.
func (r *Ring) IDs() []string {
	var ids []string
	for i := range r.keys {
		ids = append(ids, r.keys[i].ID)
	}
	return ids
}

var errNoRing = errors.New("it is not a file of fleet keys")
