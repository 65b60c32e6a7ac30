// Package agent is the agent of a host: it accepts commands from workers, journals
// them, executes them and sends their results.
//
// The agent replies to a command as soon as it is in the journal. Results are sent
// to workers, and retried until a worker acknowledges them; the reply to a status
// command has its results if they are ready soon. While NATS is disconnected,
// operations continue and results are queued.
//
// The data folder is locked by one running agent. It has the instance id, the
// journal and the output of commands. A new folder makes a new instance, for which
// servers expect no results of earlier operations.
//
// Package agent/operate executes operations, package agent/journal stores them.
package agent
