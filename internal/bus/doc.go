// Package bus manages the JetStream streams of dispatchers and workers: references
// to chunks that wait for delivery, task events, host events, and the audit log.
//
// A message of [StreamOps] contains only a reference to a chunk; the items are in
// the task store. So the stream stays small, the sweep can requeue a chunk from
// the task store, and a client with access to the bus cannot alter commands.
//
// Two more streams hold submissions: operations that producers publish instead of
// sending an HTTP request, and the submissions that failed.
//
// The bus never drops work silently: work queues reject new messages when full
// ([ErrFull]) and retain messages without an age limit. Hints that a task changed
// ([Bus.Hint]) may be lost: they are sent outside the streams and only shorten the
// polling delay of a task's watchers.
package bus
