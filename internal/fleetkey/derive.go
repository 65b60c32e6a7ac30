package fleetkey

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
	"sync"
)

// deriver derives the keys of hosts from one fleet key, anew for every message:
// with pooled, already keyed HMACs this is cheaper than a cache. It is safe for
// concurrent use.
type deriver struct{ macs sync.Pool } // pool of *derivation

// derivation is an HMAC keyed with a fleet key, and its buffers.
type derivation struct {
	mac  hash.Hash
	info []byte
	sum  []byte
}

func newDeriver(secret []byte) *deriver {
	return &deriver{macs: sync.Pool{New: func() any { return &derivation{mac: hmac.New(sha256.New, secret)} }}}
}

func (d *deriver) hostKey(id, host string, generation int) hostKey {
	m := d.begin("procfleet host v1", host, generation)
	defer d.macs.Put(m)
	k := hostKey{id: id, generation: generation}
	copy(k.secret[:], m.expand())
	return k
}

// secret returns the secret of the servers for a purpose.
func (d *deriver) secret(purpose string) []byte {
	m := d.begin("procfleet purpose v1", purpose, 0)
	defer d.macs.Put(m)
	return slices.Clone(m.expand())
}

// expand is HKDF-Expand (RFC 5869) with SHA-256 for an output of one hash, which
// is a single HMAC. It is faster than the library's, and a test compares the two.
func (m *derivation) expand() []byte {
	m.info = append(m.info, 1)
	m.mac.Reset()
	m.mac.Write(m.info)
	m.sum = m.mac.Sum(m.sum[:0])
	return m.sum
}

// begin returns a derivation whose info consists of label, host and generation;
// each text is preceded by its length, so that different inputs stay different.
// The caller must return the derivation to macs.
func (d *deriver) begin(label, host string, generation int) *derivation {
	m := d.macs.Get().(*derivation) //nolint:forcetypeassert // the pool holds only *derivation
	m.info = append(m.info[:0], label...)
	m.info = binary.BigEndian.AppendUint64(m.info, uint64(len(host)))
	m.info = append(m.info, host...)
	m.info = binary.BigEndian.AppendUint64(m.info, uint64(generation)) //nolint:gosec // never negative: File.Ring rejects such files
	return m
}
