// Package agentproto is the wire protocol between workers and agents: message
// types, their encoding, and every subject that agents use. It imports no other
// package of procfleet: servers work with agents of older releases, so these
// types change by the rules below, independently of the server's types.
//
// # Compatibility
//
//  1. The major version is in the message type ("procfleet.agent.v1.command").
//     Within v1 only optional fields are added; no field is renamed, reused or
//     changed to another unit.
//  2. Unknown fields are ignored. An unknown action is rejected with code 832;
//     the agent neither guesses nor drops it.
//  3. Enumerations are strings; codes are only added, never removed.
//  4. Durations are integer milliseconds with the unit in the name; times are
//     RFC 3339 in UTC.
//  5. A presence message announces the agent's version and message types.
//  6. A v2 adds new type strings; v1 and v2 are served together for at least one
//     release. Recorded messages of every release are stored in testdata, and
//     every later release must decode them.
//
// # Delivery
//
// Every message is delivered at least once. A command item is identified by
// (task, item): an agent that receives it again repeats its reply, not the
// action. Agents resend results until a [Receipt] of a worker names them, unless
// the results were in the reply to a status command.
//
// # Authenticity
//
// Signatures are in message headers and cover exactly the bytes of the body, the
// message's type and, for a reply, the id of the request. Host and expiry are in
// the signed body ([Command.Host], [Command.Instance], [Command.AcceptBefore]).
package agentproto
