package fleetkey

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Bounds of the content of a ring.
const (
	// maxKeys is the maximum number of keys; a replacement needs two.
	maxKeys  = 4
	keyBytes = 32
	maxID    = 32
)

// notInID reports whether r is invalid in a key id. It runs for every signature,
// and a regular expression would be too slow.
func notInID(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
}

func validID(id string) error {
	if len(id) == 0 || len(id) > maxID || strings.ContainsFunc(id, notInID) {
		return fmt.Errorf("%q is not the id of a key: 1 to 32 letters, digits, dots, dashes and underscores", id)
	}
	return nil
}

// Ring contains the keys of a fleet, newest first, and the generations of its
// hosts. It is immutable and safe for concurrent use. The nil Ring belongs to a
// server without a fleet key: it signs nothing and accepts every message.
type Ring struct {
	keys        []Key
	generations map[string]int
}

// Key is one key of a fleet.
type Key struct {
	ID     string `json:"id"`
	Secret string `json:"secret"` // base64 of 32 random bytes

	deriver *deriver // set by [File.Ring]
}

// File is the stored form of a ring: YAML in a private file.
type File struct {
	// Keys are one to four keys, newest first.
	Keys []Key `json:"keys"`
	// Generations are the generations of hosts ("<cloud>:<ip>") that were
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
	var f File
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return nil, errors.New("it is not a file of fleet keys: a list \"keys\" of ids and secrets, and at most \"generations\" beside it")
	}
	return f.Ring()
}

// Ring validates the file and returns the ring.
func (f *File) Ring() (*Ring, error) {
	if len(f.Keys) == 0 || len(f.Keys) > maxKeys {
		return nil, fmt.Errorf("keys: there are %d, it takes 1 to %d", len(f.Keys), maxKeys)
	}
	r := &Ring{generations: f.Generations}
	for i, k := range f.Keys {
		if err := validID(k.ID); err != nil {
			return nil, fmt.Errorf("keys[%d].id: %w", i, err)
		}
		if slices.ContainsFunc(r.keys, func(other Key) bool { return other.ID == k.ID }) {
			return nil, fmt.Errorf("keys[%d].id: %q is there twice", i, k.ID)
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
			return nil, fmt.Errorf("generations: that of %s is negative", host)
		}
	}
	return r, nil
}

// Host returns the current keys of the agent of a host ("<cloud>:<ip>"), or nil if
// the ring is nil.
func (r *Ring) Host(host string) *Host {
	if r == nil {
		return nil
	}
	h := &Host{name: host, keys: make([]hostKey, len(r.keys))}
	for i := range r.keys {
		h.keys[i] = r.keys[i].of(host, r.generations[host])
	}
	return h
}

// Sign adds the signatures of a message to a host to the message's headers, one
// for each key.
func (r *Ring) Sign(header map[string][]string, host string, m *Message) {
	if r == nil {
		return
	}
	for i := range r.keys {
		key := r.keys[i].of(host, r.generations[host])
		key.sign(header, m)
	}
}

// Verify returns an error unless the agent of host signed the message. The message
// must be of the expected type and, for a reply, refer to the expected request.
func (r *Ring) Verify(header map[string][]string, host string, m *Message) error {
	if r == nil {
		return nil
	}
	return verify(header, m, func(id string, generation int) (hostKey, bool) {
		i := slices.IndexFunc(r.keys, func(k Key) bool { return k.ID == id })
		if i < 0 || r.generations[host] != generation {
			return hostKey{}, false
		}
		return r.keys[i].of(host, generation), true
	})
}

// of derives the key of a host.
func (k *Key) of(host string, generation int) hostKey {
	return k.deriver.hostKey(k.ID, host, generation)
}
