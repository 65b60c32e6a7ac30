// Package bus is the durable transport between dispatchers and workers: three
// JetStream streams, references to chunks that wait for delivery, and the
// event that tells the end of a task.
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
