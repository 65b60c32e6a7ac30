package fleetkey

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet/internal/datafile"
)

// File is the stored form of a ring: YAML in a private file.
type File struct {
	// Keys are one to four keys, newest first.
	Keys []Key `json:"keys"`
	// Generations are the generations of hosts ("<cloud area>:<ip>") that were
	// revoked at least once; all other hosts have generation 0.
	Generations map[string]int `json:"generations,omitempty"`
}

// NewKey generates a key.
func NewKey(id string) (Key, error) {
	if err := validID(id); err != nil {
		return Key{}, err
	}
	secret := make([]byte, keyBytes)
	_, _ = rand.Read(secret) // never fails: it would crash the process
	return Key{ID: id, Secret: base64.StdEncoding.EncodeToString(secret)}, nil
}

// Parse parses a ring's file. The errors contain no secret.
func Parse(text []byte) (*Ring, error) {
	f, err := parseFile(text)
	if err != nil {
		return nil, err
	}
	return f.Ring()
}

func parseFile(text []byte) (*File, error) {
	var f File
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return nil, errors.New("it is not a file of fleet keys, which has a list \"keys\" of ids and secrets, and optionally \"generations\"")
	}
	return &f, nil
}

// Ring validates the file and returns the ring.
func (f *File) Ring() (*Ring, error) {
	if len(f.Keys) == 0 || len(f.Keys) > maxKeys {
		return nil, fmt.Errorf("keys: got %d, need 1 to %d", len(f.Keys), maxKeys)
	}
	r := &Ring{generations: f.Generations}
	for i, k := range f.Keys {
		if err := validID(k.ID); err != nil {
			return nil, fmt.Errorf("keys[%d].id: %w", i, err)
		}
		if slices.ContainsFunc(r.keys, func(other Key) bool { return other.ID == k.ID }) {
			return nil, fmt.Errorf("keys[%d].id: %q is not unique", i, k.ID)
		}
		secret, err := base64.StdEncoding.DecodeString(k.Secret)
		if err != nil || len(secret) != keyBytes {
			return nil, fmt.Errorf("keys[%d].secret: it is not the base64 of %d bytes", i, keyBytes)
		}
		k.deriver = newDeriver(secret)
		r.keys = append(r.keys, k)
	}
	for host, generation := range f.Generations {
		if _, _, err := parseName(host); err != nil {
			return nil, fmt.Errorf("generations: %w", err)
		}
		if generation < 0 {
			return nil, fmt.Errorf("generations: the generation of %s is negative", host)
		}
	}
	return r, nil
}

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

// Create creates a ring's file with one new key; see [datafile.Update]. If the file
// exists, Create leaves it unchanged, and the error wraps [os.ErrExist].
func Create(path string) error {
	key, err := NewKey(NewKeyID(time.Now()))
	if err != nil {
		return err
	}
	return datafile.Update(path, maxFile, func(old []byte) ([]byte, error) {
		if old != nil {
			return nil, fmt.Errorf("%s: %w", path, os.ErrExist)
		}
		return (&File{Keys: []Key{key}}).Text()
	})
}

// Update changes a ring's file, which must exist; see [datafile.Update]. If change
// returns an error, or the result is not a valid ring, nothing is written. The
// errors contain no secret.
func Update(path string, change func(*File) error) error {
	return datafile.Update(path, maxFile, func(text []byte) ([]byte, error) {
		if text == nil {
			return nil, fmt.Errorf("there is no %s: make it with `procfleet fleet-key create --fleet-key %s`: %w", path, path, os.ErrNotExist)
		}
		f, err := parseFile(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if err := change(f); err != nil {
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
	n := len(f.Keys)
	f.Keys = slices.DeleteFunc(f.Keys, func(k Key) bool { return k.ID == id })
	return len(f.Keys) < n
}

// Revoke revokes the keys of a host ("<cloud area>:<ip>") and returns its new
// generation.
func (f *File) Revoke(host string) int {
	if f.Generations == nil {
		f.Generations = map[string]int{}
	}
	f.Generations[host]++
	return f.Generations[host]
}
