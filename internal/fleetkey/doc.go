// Package fleetkey signs and verifies messages between servers and agents: every
// message carries an HMAC that only its host and the servers can make. A
// compromised broker can delay, drop and reorder messages; it can neither
// command a host nor forge its messages.
//
// Servers (dispatchers and workers) have a [Ring]: the fleet's keys. An agent
// has a [Host]: the keys of its host. A host's key is derived from a fleet key,
// the host and a generation, so that
//
//   - one host's key is worth nothing for another host;
//   - raising a host's generation in the ring revokes what was enrolled before;
//   - keys are replaced without a gap: while a ring has two keys, servers sign
//     with both and accept either, and hosts may have either or both.
//
// The signed text begins with the message's type and the id of the request that
// it answers, so that a message cannot be replayed as another type or as the
// reply to another request. Subjects are not signed: a broker may map them, and
// the parts that must not be redirected (host, instance, time limit) are in the
// signed body.
package fleetkey
