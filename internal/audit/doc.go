// Package audit writes the audit log: the caller of each change, whether it was
// accepted, and how its task ended. Records are JSON lines and go to up to two
// sinks: a file of this process ([File]) and a stream shared by all processes.
//
// A record is durable when one of the sinks has it. A change that requires its
// record waits for that ([Log.Require]); a log that is not required delays no
// call, and reports lost records in the process's log and metrics.
package audit
