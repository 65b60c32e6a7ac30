// Package agentproto is the wire between workers and agents: message types,
// their encoding, and every subject that agents use. It is a leaf: hosts run
// last year's agent, so the types here change by the rules below and do not
// follow the server's model.
//
// # Compatibility
//
//  1. The major version is in the message type ("procfleet.agent.v1.command").
//     Within v1 only optional fields are added; no field is renamed, reused or
//     given another unit.
//  2. Unknown fields are ignored. An unknown action is answered with code 832,
//     never guessed and never dropped.
//  3. Enumerations travel as strings; codes only grow.
//  4. Lengths of time are integer milliseconds with the unit in the name;
//     moments are RFC 3339 in UTC.
//  5. A presence message announces the agent's version and message types.
//  6. A v2 means new type strings beside v1, served together for at least one
//     release. Recorded messages of every release are kept in testdata and
//     must decode for ever.
//
// # Delivery
//
// Everything is delivered at least once. A command item is identified by
// (task, item): an agent that sees it again repeats its answer, not the
// action. Results are sent until a worker's receipt names them ([Receipt]), unless
// they were in the answer to a command that only looks.
//
// # Authenticity
//
// Signatures travel in message headers and cover exactly the bytes of the
// body, the message's type and, of an answer, the id of what it answers. The
// target and the expiry are in the signed body ([Command.Host],
// [Command.Instance], [Command.AcceptBefore]).
package agentproto
