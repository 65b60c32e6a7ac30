// Package supervise decides what the agent does about one process: when an
// operation may begin, when a dead process is started again, when to give up.
//
// It is one pure function, [Step]. It has no clock, since the time comes with each
// event, starts nothing and imports nothing of ours; the goroutine that owns a process feeds it events and
// performs the effects that it returns, in their order.
//
// Three rules are its reason to exist: one piece of work at a time, no
// automatic start unless the process is wanted up, and nothing that was
// scheduled in an earlier situation acts in a later one (see [State.Gen]).
package supervise
