package fleetkey

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
)

// Host is what one host's agent signs with and believes. It does not change
// and is safe for concurrent use. The nil Host signs nothing and believes
// everything: an agent that was not enrolled.
type Host struct {
	name string
	keys []hostKey
}

// HostFile is a [Host] as it is kept.
type HostFile struct {
	Host string        `json:"host"` // "<cloud>:<ip>"
	Keys []HostKeyFile `json:"keys"`
}

// HostKeyFile is one key of a host as it is kept.
type HostKeyFile struct {
	ID         string `json:"id"` // of the fleet key that it is from
	Generation int    `json:"generation"`
	Secret     string `json:"secret"` // base64
}

// Name is the host: "<cloud>:<ip>".
func (h *Host) Name() string { return h.name }

// File returns what to keep.
func (h *Host) File() HostFile {
	f := HostFile{Host: h.name}
	for i := range h.keys {
		k := &h.keys[i]
		f.Keys = append(f.Keys, HostKeyFile{ID: k.id, Generation: k.generation, Secret: base64.StdEncoding.EncodeToString(k.secret[:])})
	}
	return f
}

// Open checks what was kept. The errors name no secret.
func (f *HostFile) Open() (*Host, error) {
	h := &Host{name: f.Host}
	switch {
	case f.Host == "":
		return nil, errors.New("host: is missing")
	case len(f.Keys) == 0 || len(f.Keys) > maxKeys:
		return nil, fmt.Errorf("keys: there are %d, it takes 1 to %d", len(f.Keys), maxKeys)
	}
	for i, kept := range f.Keys {
		k := hostKey{id: kept.ID, generation: kept.Generation}
		if err := validID(kept.ID); err != nil {
			return nil, fmt.Errorf("keys[%d].id: %w", i, err)
		}
		if kept.Generation < 0 {
			return nil, fmt.Errorf("keys[%d].generation: %d is negative", i, kept.Generation)
		}
		secret, err := base64.StdEncoding.DecodeString(kept.Secret)
		if err != nil || len(secret) != len(k.secret) {
			return nil, fmt.Errorf("keys[%d].secret: it is not the base64 of %d bytes", i, len(k.secret))
		}
		copy(k.secret[:], secret)
		h.keys = append(h.keys, k)
	}
	return h, nil
}

// Sign adds the signatures of a message from this host to its headers, one
// for each key.
func (h *Host) Sign(header map[string][]string, m *Message) {
	if h == nil {
		return
	}
	for i := range h.keys {
		h.keys[i].sign(header, m)
	}
}

// Verify says why a message is not known to be from a server to this host;
// nil if it is. See [Ring.Verify].
func (h *Host) Verify(header map[string][]string, m *Message) error {
	if h == nil {
		return nil
	}
	return verify(header, m, func(id string, generation int) (hostKey, bool) {
		i := slices.IndexFunc(h.keys, func(k hostKey) bool { return k.id == id && k.generation == generation })
		if i < 0 {
			return hostKey{}, false
		}
		return h.keys[i], true
	})
}
