// Package proc is everything the agent asks of the operating system about
// processes: finding the process that a spec describes, noticing its death,
// signalling it, reading its numbers, and running control commands.
//
// It knows nothing of operations, journals or messages; agent/supervise
// decides, this package looks and acts. It imports nothing of ours.
//
// One rule runs through it: a pid is not a process. Whatever is kept, watched
// or signalled is an [Identity] (boot, pid, start time), and it is verified
// again at the moment of use. When the truth cannot be read the answer is
// [Uncertain], never a guess.
//
// Supervising needs Linux or Windows. Elsewhere the package compiles, and every
// function that would touch a process returns [ErrUnsupported]. What a system
// is asked for stands in files named for it; what is made of the answers is the
// same everywhere. Windows has no SIGTERM, no process groups and no sessions:
// the process itself can only be ended, and what belongs to a command is what
// descends from it.
package proc
