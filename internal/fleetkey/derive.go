package fleetkey

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
)

// deriver derives hosts' keys from one fleet key, for every message: that costs
// less than a lookup in a cache, because pooled HMACs are keyed already. It is
// safe for concurrent use.
type deriver struct{ macs sync.Pool } // of *derivation

// derivation is an HMAC with a fleet key, and its buffers.
type derivation struct {
	mac  hash.Hash
	info []byte
	sum  []byte
}

func newDeriver(secret []byte) *deriver {
	return &deriver{macs: sync.Pool{New: func() any { return &derivation{mac: hmac.New(sha256.New, secret)} }}}
}

// hostKey returns the key of a host.
func (d *deriver) hostKey(id, host string, generation int) hostKey {
	m := d.begin("procfleet host v1", host, generation)
	defer d.macs.Put(m)
	k := hostKey{id: id, generation: generation}
	copy(k.secret[:], m.expand())
	return k
}

// expand is HKDF-Expand of the info with SHA-256 to the length of one hash
// (RFC 5869), which is one HMAC; a test holds it to the library's, which takes
// longer.
func (m *derivation) expand() []byte {
	m.info = append(m.info, 1)
	m.mac.Reset()
	m.mac.Write(m.info)
	m.sum = m.mac.Sum(m.sum[:0])
	return m.sum
}

// begin returns a derivation whose info is the label, the host and the
// generation; lengths before texts keep different inputs different. The caller
// puts it back into macs.
func (d *deriver) begin(label, host string, generation int) *derivation {
	m := d.macs.Get().(*derivation) //nolint:forcetypeassert // it holds nothing else
	m.info = append(m.info[:0], label...)
	m.info = binary.BigEndian.AppendUint64(m.info, uint64(len(host)))
	m.info = append(m.info, host...)
	m.info = binary.BigEndian.AppendUint64(m.info, uint64(generation)) //nolint:gosec // never below zero: files are checked for it
	return m
}
