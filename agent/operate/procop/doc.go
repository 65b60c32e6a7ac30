// Package procop carries out work on one process of this host: operations, automatic
// starts, terminations and searches.
//
// Each piece of work is a value: [Host.Operation], [Host.AutoStart], [Host.Termination]
// and [Host.Probe] make it from a spec and the engine's [Knowledge] of the process, and
// its Run method carries it out and returns the result. The pieces share helpers: target
// finds the process, work runs commands, startup starts the process, shutdown ends it, and
// recovery completes work of an earlier agent process. Work decides nothing about
// supervision; its dependencies are in [Host] and [Engine].
package procop
