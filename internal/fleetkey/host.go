package fleetkey

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Host is what one host's agent signs with and believes. It does not change
// and is safe for concurrent use. The nil Host signs nothing and believes
// everything that is not signed: an agent that was not enrolled.
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

// Place is the cloud area and the address that the name is made of.
func (h *Host) Place() (cloud int64, addr netip.Addr, err error) { return parseName(h.name) }

// parseName takes names only in the form in which messages have them, for a
// key is of the text.
func parseName(name string) (cloud int64, addr netip.Addr, err error) {
	area, ip, _ := strings.Cut(name, ":")
	cloud, err = strconv.ParseInt(area, 10, 64)
	if err == nil {
		addr, err = netip.ParseAddr(ip)
	}
	if addr = addr.Unmap(); err != nil || cloud < 0 || name != fmt.Sprintf("%d:%s", cloud, addr) {
		return 0, netip.Addr{}, fmt.Errorf("%q is not of the form <cloud>:<ip>, for example 0:10.0.0.1", name)
	}
	return cloud, addr, nil
}

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
	_, _, err := parseName(f.Host)
	switch {
	case err != nil:
		return nil, fmt.Errorf("host: %w", err)
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
		if len(header[signatureHeader]) > 0 {
			return ErrNoKeys
		}
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
