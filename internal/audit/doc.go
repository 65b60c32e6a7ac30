// Package audit keeps the audit log: who asked for what, whether it was
// accepted, and how it ended. Records are JSON, one in a line, and go to up to
// two places: a file of this process ([File]) and a stream for all of them.
//
// A record is durable when one of the places has it. Whoever must not go on
// without waits for that ([Log.Require]); a log that is not required holds
// nobody up, and tells in the process's log and metrics when it loses records.
package audit
