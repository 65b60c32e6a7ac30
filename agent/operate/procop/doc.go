// Package procop carries out work on one process of this host: operations,
// automatic starts, terminations and probes.
//
// Each piece of work is a value: [Host.Operation], [Host.AutoStart], [Host.Termination]
// and [Host.Probe] make one from a spec and from what is known of the process, and its Run
// method reports the result. They share parts: target finds the process, work runs
// commands, startup starts it, shutdown ends it, recovery completes what an earlier agent
// process began. Work decides nothing about supervision; what it needs of its engine is in
// [Host] and [Engine].
package procop
