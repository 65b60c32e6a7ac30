// Package operate carries out operations on the processes of this host and keeps
// supervised ones alive.
//
// The [Engine] admits operations and has at most one actor for each process key. An
// actor owns all state of its key: it passes events to the state machine of
// agent/supervise and performs the effects. Work on the process, which may take long,
// is done by agent/operate/procop in goroutines of its own, so that an actor always
// handles its messages. agent/proc finds, runs and signals processes.
//
// Operations that reach the engine are already durable. A command begins only after
// [Ledger.Execute] returned, and a result is reported only after [Ledger.Finish]
// returned, so a crash at any point leaves enough to continue: see [Engine.Recover].
package operate
