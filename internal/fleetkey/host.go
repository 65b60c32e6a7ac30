package fleetkey

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// Host contains the keys with which the agent of one host signs and verifies. It
// is immutable and safe for concurrent use. The nil Host belongs to an agent that
// is not enrolled: it signs nothing and accepts only unsigned messages.
type Host struct {
	name    string
	keys    []hostKey
	agentID string              // "" if the host has no agent id
	proofs  [][sha256.Size]byte // proofs of agentID, one for each key
}

// HostFile is the stored form of a [Host].
type HostFile struct {
	Host    string        `json:"host"` // "<cloud area>:<ip>"
	AgentID string        `json:"agent_id,omitempty"`
	Keys    []HostKeyFile `json:"keys"`
}

// HostKeyFile is the stored form of one key of a host.
type HostKeyFile struct {
	ID         string `json:"id"` // id of the fleet key from which Secret is derived
	Generation int    `json:"generation"`
	Secret     string `json:"secret"` // base64
	// AgentIDProof proves the host's agent id to servers with this fleet key;
	// base64.
	AgentIDProof string `json:"agent_id_proof,omitempty"`
}

// Name returns the host as "<cloud area>:<ip>".
func (h *Host) Name() string { return h.name }

// Address returns the cloud area and the address of the host.
func (h *Host) Address() (cloud int64, addr netip.Addr, err error) { return parseName(h.name) }

// parseName accepts only the canonical form that messages use, since keys are
// derived from the text.
func parseName(name string) (cloud int64, addr netip.Addr, err error) {
	area, ip, _ := strings.Cut(name, ":")
	cloud, err = strconv.ParseInt(area, 10, 64)
	if err == nil {
		addr, err = netip.ParseAddr(ip)
	}
	if addr = addr.Unmap(); err != nil || cloud < 0 || name != fmt.Sprintf("%d:%s", cloud, addr) {
		return 0, netip.Addr{}, fmt.Errorf("%q is not of the form <cloud area>:<ip>, for example 0:10.0.0.1", name)
	}
	return cloud, addr, nil
}

// File returns the stored form of the host.
func (h *Host) File() HostFile {
	f := HostFile{Host: h.name, AgentID: h.agentID}
	for i := range h.keys {
		k := &h.keys[i]
		stored := HostKeyFile{ID: k.id, Generation: k.generation, Secret: base64.StdEncoding.EncodeToString(k.secret[:])}
		if h.agentID != "" {
			stored.AgentIDProof = base64.StdEncoding.EncodeToString(h.proofs[i][:])
		}
		f.Keys = append(f.Keys, stored)
	}
	return f
}

// Open validates the stored form and returns the host. The errors contain no secret.
func (f *HostFile) Open() (*Host, error) {
	h := &Host{name: f.Host, agentID: f.AgentID}
	_, _, err := parseName(f.Host)
	switch {
	case err != nil:
		return nil, fmt.Errorf("host: %w", err)
	case f.AgentID != "" && ValidAgentID(f.AgentID) != nil:
		return nil, fmt.Errorf("agent_id: %w", ValidAgentID(f.AgentID))
	case len(f.Keys) == 0 || len(f.Keys) > maxKeys:
		return nil, fmt.Errorf("keys: got %d, need 1 to %d", len(f.Keys), maxKeys)
	}
	for i, stored := range f.Keys {
		k := hostKey{id: stored.ID, generation: stored.Generation}
		if err := validID(stored.ID); err != nil {
			return nil, fmt.Errorf("keys[%d].id: %w", i, err)
		}
		if stored.Generation < 0 {
			return nil, fmt.Errorf("keys[%d].generation: %d is negative", i, stored.Generation)
		}
		if k.secret, err = decode32(stored.Secret); err != nil {
			return nil, fmt.Errorf("keys[%d].secret: %w", i, err)
		}
		h.keys = append(h.keys, k)
		if f.AgentID == "" {
			continue
		}
		proof, err := decode32(stored.AgentIDProof)
		if err != nil {
			return nil, fmt.Errorf("keys[%d].agent_id_proof: %w", i, err)
		}
		h.proofs = append(h.proofs, proof)
	}
	return h, nil
}

// decode32 decodes the base64 of a key or a MAC. The error does not quote text.
func decode32(text string) (out [sha256.Size]byte, err error) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(data) != len(out) {
		return out, fmt.Errorf("it is not the base64 of %d bytes", len(out))
	}
	return [sha256.Size]byte(data), nil
}

// Sign adds the signatures of a message from this host to its headers, one for
// each key, and the proofs of the agent id.
func (h *Host) Sign(header map[string][]string, m *Message) {
	if h == nil {
		return
	}
	for i := range h.keys {
		h.keys[i].sign(header, m)
	}
	for i := range h.proofs {
		header[proofHeader] = append(header[proofHeader], h.keys[i].headerValue(h.proofs[i][:]))
	}
}

// Verify returns an error unless the message is verified as a server's message to
// this host. See [Ring.Verify].
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

// Identity is the result of enrolling a host: its keys and its NATS credentials.
type Identity struct {
	Host *Host // never nil
	// NATS is the host's user in the format of NATS tools, a text with a JWT and
	// a seed; empty if NATS requires no credentials.
	NATS string
}

// identityFile is the stored form of an identity: YAML in a private file.
type identityFile struct {
	HostFile
	NATS string `json:"nats,omitempty"`
}

// Text returns the stored form of the identity.
func (i *Identity) Text() ([]byte, error) {
	text, err := yaml.Marshal(identityFile{HostFile: i.Host.File(), NATS: i.NATS})
	if err != nil {
		return nil, fmt.Errorf("identity of host %s: %w", i.Host.Name(), err)
	}
	return text, nil
}

// ParseIdentity parses the stored form. The errors contain no secret.
func ParseIdentity(text []byte) (*Identity, error) {
	var stored identityFile
	if err := yaml.UnmarshalStrict(text, &stored); err != nil {
		return nil, errors.New("it is not the identity of a host, which has \"host\" and \"keys\", and optionally \"agent_id\" and \"nats\"")
	}
	host, err := stored.Open()
	if err != nil {
		return nil, err
	}
	return &Identity{Host: host, NATS: stored.NATS}, nil
}
