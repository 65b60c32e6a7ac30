// Package agent is the program on a host: it takes commands from workers,
// journals them, has them carried out, and reports what became of them.
//
// A command is answered as soon as it is in the journal; its results follow
// as requests to workers and are retained until a worker's receipt names them. A
// status command is answered with what was observed, if that is ready soon.
// Nothing of this depends on the connection: while NATS is away, operations
// go on and results wait.
//
// The data folder belongs to one running agent (a lock sees to it) and holds
// the instance id, the journal and the output of commands. A new folder is a
// new instance, of which the servers know that it remembers nothing.
//
// Carrying out is agent/operate's part, remembering is agent/journal's.
package agent
