package procfleet

import "slices"

// Action is what an operation does to a process. The zero value and every
// value outside [Actions] are unknown: an agent answers them with
// [CodeUnknownAction] and does nothing.
type Action string

// The eight actions.
const (
	ActionStart     Action = "start"     // run the start command, verify, supervise
	ActionStop      Action = "stop"      // run the stop command, verify, release
	ActionStatus    Action = "status"    // look, change nothing
	ActionSupervise Action = "supervise" // keep the process alive from now on
	ActionRelease   Action = "release"   // stop supervising it; the process itself keeps running
	ActionRestart   Action = "restart"   // run the restart command, verify that the process was replaced, supervise
	ActionReload    Action = "reload"    // run the reload command
	ActionKill      Action = "kill"      // run the kill command or SIGKILL, verify, release
)

var actions = []Action{
	ActionStart, ActionStop, ActionStatus, ActionSupervise,
	ActionRelease, ActionRestart, ActionReload, ActionKill,
}

// Actions returns the known actions in the order of the published numbers
// 0 to 4 and 7 to 9.
func Actions() []Action { return slices.Clone(actions) }

// Known reports whether a is one of the eight actions.
func (a Action) Known() bool { return slices.Contains(actions, a) }

// Registers reports whether an operation with this action, once it is
// accepted, makes its spec the registered one of its process. What ends
// something or only looks often comes with half a spec.
func (a Action) Registers() bool {
	return a == ActionStart || a == ActionSupervise || a == ActionRestart
}

// Mutating reports whether a changes anything on the host. Unknown actions
// count as mutating, so that whatever guards changes guards them too.
func (a Action) Mutating() bool { return a != ActionStatus }
