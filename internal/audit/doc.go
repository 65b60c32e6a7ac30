// Package audit writes the audit log: the caller of each change, whether it was
// accepted, and how its task ended. Records are JSON lines, stored in up to two
// sinks: a file of this process ([File]) and a stream shared by all processes.
//
// A record is durable once one of the sinks has stored it. With a required log, a
// change waits until its record is durable ([Log.Require]); otherwise the log
// delays no call, and reports lost records in the process's log and metrics.
package audit
