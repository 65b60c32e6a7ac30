// Package procfleet declares the domain types of procfleet: submissions,
// operations, targets, tasks, items and results. It performs no I/O, and all
// other packages use its types.
//
// A caller sends a [Submission], a list of operations. An [Operation] is one
// [Action] on one [ProcessSpec] across a set of [Target] hosts. The accepted
// submission is a [Task]; its parts, one process on one host each, are items,
// and every item ends with exactly one final [Result].
//
// The life of a task:
//
//	accepted ──first chunk begun──► running ──last item final──► finished
//	    │
//	    └──acceptance failed and nothing begun──► rejected
//
// The life of an item (see [State]):
//
//	pending ──agent accepted──► delivered ──agent's result──► succeeded | unchanged | failed
//	   │                            └──deadline──► timed_out ─┐
//	   └──no agent replied──► unreachable ────────────────────┴─late agent result─► succeeded | …
//
// An item can pass from pending to succeeded, unchanged or failed directly: the
// agent's reply to a command may already contain the result.
package procfleet
