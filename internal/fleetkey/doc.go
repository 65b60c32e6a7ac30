// Package fleetkey makes messages between servers and agents provable: every
// message carries an HMAC that only the host it concerns and the servers can
// make. A broker that was taken over can delay, drop and reorder messages; it
// can neither order a host to do something nor forge what a host says.
//
// Servers (dispatchers and workers) hold a [Ring]: the fleet's keys. An agent
// holds a [Host]: what the ring gives for its host. A host's key is derived
// from a fleet key, the host and a generation, so that
//
//   - one host's key is worth nothing for another host;
//   - raising a host's generation in the ring revokes what was enrolled before;
//   - keys are replaced without a gap: while a ring has two keys, servers sign
//     with both and believe either, and hosts may have either or both.
//
// What is signed begins with the message's type and the id of the message that
// it answers, so that none can be passed off as one of another kind or as the
// answer to another. Subjects are not signed: a
// broker may map them, and what must not be redirected (host, instance, time
// limit) is in the signed body.
package fleetkey
