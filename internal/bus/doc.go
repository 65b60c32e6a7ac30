// Package bus has the JetStream streams of dispatchers and workers, one for each
// of: references to chunks that wait for delivery, events of tasks, events of
// hosts, and the audit log.
//
// A message of [StreamOps] is only a reference to a chunk; the chunk's items are
// in the task store. So the stream stays small, the sweep can publish again from
// the store alone, and a client that can publish on the bus cannot change the
// commands of a chunk.
//
// Two more streams are for submissions: operations that producers publish
// instead of sending an HTTP request, and those that failed.
//
// The bus loses nothing silently: work queues refuse new messages when full
// ([ErrFull]) and keep old ones without limit of age. Hints that a task changed
// ([Bus.Hint]) are the exception: they only save watchers of a task some
// waiting, and are outside the streams.
package bus
