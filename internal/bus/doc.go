// Package bus is what JetStream keeps for dispatchers and workers, a stream
// for each: references to chunks that wait for delivery, events of tasks, events
// of hosts, and the audit log.
//
// A message of [StreamOps] is only a reference to a chunk; the chunk's items
// live in the task store. So the stream stays small, the sweep can publish
// again from the store alone, and whoever can publish on the bus cannot change
// what a chunk orders.
//
// Beside it are the streams of submissions: operations that producers publish
// instead of making a request, and what of them failed.
//
// The bus loses nothing silently: work queues refuse new messages when full
// ([ErrFull]) and keep old ones without limit of age. Hints that a task changed
// ([Bus.Hint]) are the exception: they only spare whoever watches a task some
// waiting, and travel outside the streams.
package bus
