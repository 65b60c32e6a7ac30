// Package operate carries out operations on the processes of this host and
// keeps supervised ones alive.
//
// The [Engine] gives each process key at most one goroutine at a time that owns
// everything known of it; there is one while messages are handled. That goroutine
// feeds agent/supervise with what happens and performs what it decides; commands
// and looks run beside it, one at a time, so that it always answers. agent/proc does the looking, running and signalling.
//
// Operations that reach the engine are already durable. A command begins only
// after [Ledger.Execute] returned, and a result leaves only after
// [Ledger.Finish] returned, so a crash at any point leaves enough to tell what
// to do: see [Engine.Recover].
package operate
