// Package supervise decides what the agent does about one process: when an
// operation may begin, when a dead process is started again, when to give up.
//
// It is one pure function, [Step], without a clock and without side effects:
// each event carries the time. The goroutine that owns a process passes events
// to Step and performs the returned effects in their order.
//
// Step guarantees three rules: one piece of work at a time, no automatic start
// unless the desired state is up, and no effect of a timer or observation that
// was requested in an earlier situation (see [State.Gen]).
package supervise
