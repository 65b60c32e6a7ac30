// Package hostcheck looks for what endangers the processes of this host, or
// what the agent must be able to do for them: a unit whose restart kills them, a
// first process that does not reap, a journal that is gone after a reboot. It
// changes nothing, and finds nothing on systems other than Linux.
package hostcheck
