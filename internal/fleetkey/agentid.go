package fleetkey

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// proofHeader is the header with the proofs that a host was enrolled with its
// agent id, in the format of signatures: "<key id> <generation> <MAC>".
const proofHeader = "Procfleet-Agent-Id-Proof"

// MaxAgentID is the maximum size of an agent id in bytes.
const MaxAgentID = 128

// ErrAgentIDNotHeld means that a host claims an agent id with which it was not
// enrolled.
var ErrAgentIDNotHeld = errors.New("this agent id is not part of the host's identity")

// ValidAgentID returns an error if no host can be enrolled with the agent id.
func ValidAgentID(id string) error {
	switch {
	case id == "":
		return errors.New("agent id is empty")
	case len(id) > MaxAgentID:
		return fmt.Errorf("agent id %.40q… is %d bytes long, at most %d are allowed", id, len(id), MaxAgentID)
	case !utf8.ValidString(id) || strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsGraphic(r) }):
		return fmt.Errorf("agent id %q has characters that cannot be printed", id)
	}
	area, ip, _ := strings.Cut(id, ":")
	if _, err := strconv.ParseInt(area, 10, 64); err == nil {
		if _, err := netip.ParseAddr(ip); err == nil {
			return fmt.Errorf("agent id %q has the form <cloud area>:<ip>, which always means the host of that address", id)
		}
	}
	return nil
}

// Enroll is [Ring.Host] with an agent id and its proofs, one for each key; an
// empty id has no proofs. Proofs require a fleet key, so a host cannot claim
// another agent id with its own keys.
func (r *Ring) Enroll(host, agentID string) *Host {
	h := r.Host(host)
	if h == nil || agentID == "" {
		return h
	}
	h.agentID = agentID
	for i := range r.keys {
		h.proofs = append(h.proofs, r.keys[i].deriver.agentIDProof(host, r.generations[host], agentID))
	}
	return h
}

// AgentID returns the agent id of the identity; "" if it has none.
func (h *Host) AgentID() string {
	if h == nil {
		return ""
	}
	return h.agentID
}

// VerifyAgentID verifies the agent id in a message of host whose signature has
// been verified. It returns [ErrAgentIDNotHeld] without a valid proof. The empty
// id needs no proof, and the nil ring accepts every id.
func (r *Ring) VerifyAgentID(header map[string][]string, host, agentID string) error {
	if r == nil || agentID == "" {
		return nil
	}
	values := header[proofHeader]
	for _, value := range values[:min(len(values), maxSignatures)] {
		p, err := parseSignature(value)
		if err != nil {
			continue
		}
		i := slices.IndexFunc(r.keys, func(k Key) bool { return k.ID == p.id })
		if i < 0 || r.generations[host] != p.generation {
			continue
		}
		want := r.keys[i].deriver.agentIDProof(host, p.generation, agentID)
		if hmac.Equal(want[:], p.mac[:]) {
			return nil
		}
	}
	return ErrAgentIDNotHeld
}

// agentIDProof returns the MAC of a host, its generation and an agent id, each
// text preceded by its length. Its label separates it from the keys of hosts,
// which are derived with the same HMAC key.
func (d *deriver) agentIDProof(host string, generation int, agentID string) [sha256.Size]byte {
	m := d.begin("procfleet agent id v1", host, generation)
	defer d.macs.Put(m)
	m.info = binary.BigEndian.AppendUint64(m.info, uint64(len(agentID)))
	m.info = append(m.info, agentID...)
	return [sha256.Size]byte(m.expand())
}
