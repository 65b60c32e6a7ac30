// Package procop carries out work on one process of this host: operations,
// automatic starts, terminations and probes.
//
// Each piece of work is a value: [Host.Operation], [Host.AutoStart],
// [Host.Termination] and [Host.Probe] make one from a spec and from what is known
// of the process, and its Run method returns a [Report]. The values share the same
// parts:
//
//   - target finds the process that the spec describes;
//   - work runs commands for it and collects warnings;
//   - startup starts it and waits until it is up;
//   - shutdown ends it and waits until it is gone;
//   - recovery takes up what an earlier agent process left behind.
//
// Work decides nothing about supervision and knows no other work. What it needs of
// its engine is in [Host] and [Engine].
package procop
