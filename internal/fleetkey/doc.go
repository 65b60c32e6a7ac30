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
