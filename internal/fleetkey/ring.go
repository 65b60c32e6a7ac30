// Package fleetkey signs and verifies messages between servers and agents: every
// message carries an HMAC that only the host in question and the servers can
// compute. A compromised broker can delay, drop and reorder messages, but can
// neither command a host nor forge messages of a host.
//
// Servers (dispatchers and workers) have a [Ring]: the fleet's keys. An agent has a
// [Host]: the keys of its host. The key of a host is derived from a fleet key, the
// host and a generation. Therefore
//
//   - the key of one host is useless for another host;
//   - raising a host's generation in the ring revokes its earlier keys;
//   - keys are replaced without interruption: with two keys in the ring, servers
//     sign with both and accept either, and hosts may have either or both.
//
// The signed text begins with the message's type and, for a reply, the id of the
// request, so that a message cannot be replayed as another type or as the reply to
// another request. Subjects are not signed, because a broker may map them; the
// fields that must not be redirected (host, instance, time limit) are in the
// signed body.
package fleetkey

import (
	"fmt"
	"slices"
	"strings"
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

// Derive returns a secret of 32 bytes that all servers of the fleet share, from the newest key; nil if
// the ring is nil. Each purpose has a secret of its own.
func (r *Ring) Derive(purpose string) []byte {
	if r == nil {
		return nil
	}
	return r.keys[0].deriver.secret(purpose)
}

// Host returns the current keys of the agent of a host ("<cloud area>:<ip>"), or nil if
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

func (k *Key) of(host string, generation int) hostKey {
	return k.deriver.hostKey(k.ID, host, generation)
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
