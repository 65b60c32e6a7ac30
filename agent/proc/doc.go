// Package proc is the agent's interface to the processes of the operating system: it
// finds the process of a spec, watches, signals and measures processes, and runs
// control commands.
//
// It knows nothing of operations, journals or messages: agent/supervise decides, this
// package observes and acts.
//
// A pid is not a process, because pids are reused. Everything stored, watched or
// signalled is an [Identity] (boot, pid, start time), which is verified again at the
// moment of use. When the host cannot be read the verdict is [Uncertain].
//
// Supervising needs Linux or Windows. On other systems the package compiles, and its
// functions return [ErrUnsupported]. Files with a system's name as suffix contain its system
// calls; all other files are portable. Windows has no SIGTERM, no process groups and no
// sessions: a process can only be killed, and the processes of a command are its descendants.
package proc
