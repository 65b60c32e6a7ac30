// Package agentproto is the wire protocol between workers and agents: message
// types, their encoding, and every subject that agents use. It imports no other
// package of procfleet, so that a change of the server's types does not change the
// messages.
//
// # Encoding
//
//  1. The protocol's version is in the message type ("procfleet.agent.v1.command").
//     A message of another version is refused.
//  2. Unknown fields are ignored. An unknown action is rejected with code 832;
//     the agent neither guesses nor drops it.
//  3. Enumerations are strings.
//  4. Durations are integer milliseconds with the unit in the name; times are
//     RFC 3339 in UTC.
//
// Recorded messages are in testdata; a change that would read them differently
// fails a test.
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
