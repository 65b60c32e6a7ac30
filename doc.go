// Package procfleet is the vocabulary of procfleet: what a caller may ask for,
// where it is to happen, and what came of it. It has no I/O; every other
// package speaks in these words.
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
//	   └──no agent answered──► unreachable ───────────────────┴─late agent result─► succeeded | …
//
// An item that was never seen as delivered may succeed or fail as well: what a
// status sees is in the agent's first answer.
package procfleet
