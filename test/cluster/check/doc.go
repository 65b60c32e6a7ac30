// Package check proves from outside that a fleet loses nothing. A [Load]
// submits operations all the time through the real API, follows every task that
// it was promised, and keeps what it saw as a [History]. [History.Violations]
// judges that against what the agents' hosts have as evidence: the marks that
// control commands left. It knows nothing but the API, the notifications of
// ends and these marks, so whatever breaks a promise is found, however it came
// about.
//
// [NewSchedule] makes the faults that are done meanwhile from a seed.
//
// # What a fail-over of Redis may show
//
// With replicas to wait for, everything that was promised survives a fail-over:
// a task that was accepted, and every result for which an agent got a receipt.
// What may be seen, and be gone a moment later, is what the old master had done
// and not yet confirmed: the next poll shows a task further back than it was.
// The agents send the results again. So within a
// [Span] in which the store may fail over, a task may go back; but never to
// nothing, never out of the sum of its counters, and in the end each item has
// the same word of its agent that was seen before. Outside of these spans
// nothing goes back at all.
package check
