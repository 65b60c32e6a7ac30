// Package agent is the agent of a host: it accepts commands from workers, journals
// them, executes them and sends their results.
//
// The agent replies to a command as soon as the command is in the journal. It sends results
// to workers and retries until a worker acknowledges them. The reply to a status command
// contains the results that are ready soon. While NATS is disconnected, operations continue
// and results are queued.
//
// A running agent locks its data folder, which has the instance id, the journal and the
// output of commands. A new folder makes a new instance, from which servers expect no
// results of earlier operations.
//
// Package agent/operate executes operations, package agent/journal stores them.
package agent
