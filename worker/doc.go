// Package worker is the role between the task store and the agents. It is
// stateless; any number of workers share the work.
//
//   - deliver takes chunk references from the bus, asks the store what is
//     still open, and asks the agent of every host to accept its items;
//   - collect stores the results that agents send, in batches, and replies with
//     receipts;
//   - hostevents publishes the events that agents send, once they are verified;
//   - sweep heals what was lost on the way and ends what is overdue;
//   - notify tells the end of a task, by event and by callback;
//   - presence keeps in the store which agents are alive;
//   - reports keeps in the store how the processes stand that agents manage.
//
// # One chunk
//
//	reference ──Begin──► open ──ask every host──► accepted | refused | nobody | silence
//	                      │                          │           │        │        │
//	                      └─ not open: ack, drop     delivered   record   grace    ask again
//	                                                                               until accept_before
//
// When every item was accepted, refused or recorded: Record, Delivered with
// done, acknowledge, in this order. A worker that dies in between leaves a
// chunk that another one begins again; the store and the agents' journals
// make the repeat harmless.
//
// Memory is bounded by what is pulled (chunks and items in flight, chunks that
// step aside because hosts are slow to answer) and by the sizes of the inboxes: a
// receipt says when to send again what did not fit. A cloud area whose hosts do
// not answer has a part of the room for chunks, and not more.
package worker
