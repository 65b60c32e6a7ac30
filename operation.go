package procfleet

import (
	"slices"
	"time"
)

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

// Operation is one action on one process spec across a set of hosts.
type Operation struct {
	Action  Action      `json:"action"`
	Process ProcessSpec `json:"process"`
	Targets []Target    `json:"targets"`
	// Registered takes the spec from what is registered for the namespace and
	// the name of Process, which has nothing else; without targets, on every
	// host where it is registered.
	Registered bool `json:"registered,omitempty"`
	// Over, if not nil, takes what Process leaves out from what is registered
	// for its namespace and name, on each target where something is.
	Over *Overlay `json:"over,omitempty"`
	// Selection takes processes and hosts from the catalogue. Beside it there
	// are neither a process nor targets.
	Selection *Selection `json:"select,omitempty"`
}

// Submission is what a caller sends to be accepted as one task.
type Submission struct {
	Operations []Operation `json:"operations"`
	// Timeout, if not zero, replaces the computed deadline; 1 s to 7 days.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Dialect is the published call that made it and decides the shape of
	// result keys; Application is the caller, Business its business.
	Dialect     string `json:"dialect,omitempty"`
	Application string `json:"application,omitempty"`
	Business    string `json:"business,omitempty"`
	// Callback is a URL (http or https) that is notified when the task is
	// finished; empty for none.
	Callback string `json:"callback,omitempty"`
}

// Items returns the number of items: one for each target of each operation.
func (s *Submission) Items() int {
	n := 0
	for i := range s.Operations {
		n += len(s.Operations[i].Targets)
	}
	return n
}

// Item is one process on one host inside a task.
type Item struct {
	Action Action `json:"a"`
	Spec   int    `json:"s"` // index into the chunk's Specs
	Target Target `json:"t"`
}

// Chunk is the unit in which a task travels: items of one cloud area. All
// items of one process on one host are in one chunk, in request order. Items
// of a task are numbered through its chunks: the i-th item of a chunk is item
// First+i of the task.
type Chunk struct {
	Cloud CloudArea     `json:"cloud"`
	First int           `json:"first"`
	Specs []ProcessSpec `json:"specs"`
	Items []Item        `json:"items"`
}

// Spec returns the process spec of the i-th item of the chunk.
func (c *Chunk) Spec(i int) *ProcessSpec { return &c.Specs[c.Items[i].Spec] }
