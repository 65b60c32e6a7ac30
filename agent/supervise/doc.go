// Package supervise decides what the agent does with one process: when an operation may
// begin, when a dead process is restarted, and when restarting it is given up.
//
// The package is one pure function, [Step]. The goroutine that owns a process calls Step
// with events and the time, and performs the returned effects in their order. Step reads
// no clock, starts nothing, and depends on no other package of procfleet.
//
// Step exists for three rules: one piece of work at a time; no automatic start unless the
// desired state is [Up]; and a timer or search that began in an earlier state is ignored
// (see [State.Gen]).
package supervise
