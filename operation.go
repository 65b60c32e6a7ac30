package procfleet

import (
	"slices"
	"time"
)

// Action is an operation on a process. An agent rejects the zero value and
// every other value outside [Actions] with [CodeUnknownAction].
type Action string

// Known values of [Action].
const (
	ActionStart     Action = "start"     // run the start command, verify the process, supervise it
	ActionStop      Action = "stop"      // run the stop command, verify the exit, end supervision
	ActionStatus    Action = "status"    // inspect without changing anything
	ActionSupervise Action = "supervise" // keep the process alive from now on
	ActionRelease   Action = "release"   // stop supervising; the process keeps running
	ActionRestart   Action = "restart"   // run the restart command, verify that the process was replaced, supervise
	ActionReload    Action = "reload"    // run the reload command
	ActionKill      Action = "kill"      // run the kill command or send SIGKILL, verify the exit, end supervision
)

var actions = []Action{
	ActionStart, ActionStop, ActionStatus, ActionSupervise,
	ActionRelease, ActionRestart, ActionReload, ActionKill,
}

// Actions returns the known actions, ordered by their numbers in the published
// API: 0 to 4 and 7 to 9.
func Actions() []Action { return slices.Clone(actions) }

// Known reports whether a is one of the eight actions.
func (a Action) Known() bool { return slices.Contains(actions, a) }

// Registers reports whether an accepted operation with this action stores its
// spec as the registration of the process. Stop, kill, release and status do
// not: callers often send an incomplete spec with these.
func (a Action) Registers() bool {
	return a == ActionStart || a == ActionSupervise || a == ActionRestart
}

// Mutating reports whether a changes anything on the host. Unknown actions
// count as mutating, so that guards against changes cover them.
func (a Action) Mutating() bool { return a != ActionStatus }

// Operation is one action on one process spec across a set of hosts.
type Operation struct {
	Action  Action      `json:"action"`
	Process ProcessSpec `json:"process"`
	Targets []Target    `json:"targets"`
	// Registered uses the registered spec of the namespace and name in Process,
	// whose other fields must be empty. Without Targets, the operation covers
	// every host on which the process is registered.
	Registered bool `json:"registered,omitempty"`
	// Over, if not nil, completes Process on each target with the fields of the
	// registration, if its namespace and name are registered there.
	Over *Overlay `json:"over,omitempty"`
	// Selection selects processes and hosts from the catalog. It excludes
	// Process and Targets.
	Selection *Selection `json:"select,omitempty"`
}

// Submission is a list of operations that a caller sends, to be accepted as one task.
type Submission struct {
	Operations []Operation `json:"operations"`
	// Timeout, if not zero, replaces the computed time limit; 1 s to 7 days.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Rollout, if not nil, releases the hosts gradually. Timeout then applies to each host.
	Rollout *RolloutPolicy `json:"rollout,omitempty"`
	// Policy names a stored policy that becomes Rollout; "" allows the default of the business.
	Policy string `json:"policy,omitempty"`
	// Queue, if not nil, lets operations wait for hosts without an agent.
	Queue *HostQueue `json:"queue,omitempty"`
	// Override is the reason to ignore maintenance windows; "" heeds them.
	Override string `json:"override,omitempty"`
	// Dialect is the published API call that received the submission; it defines
	// the format of result keys. Application and Business identify the caller.
	Dialect     string `json:"dialect,omitempty"`
	Application string `json:"application,omitempty"`
	Business    string `json:"business,omitempty"`
	// Callback is an http or https URL that is notified when the task ends;
	// empty: no notification.
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
	Spec   int    `json:"s"` // index into [Chunk.Specs]
	Target Target `json:"t"`
}

// Chunk is the unit in which a task is queued: items of one cloud area. A chunk
// contains all items of one process on one host, in request order. The i-th item
// of a chunk is item First+i of the task.
type Chunk struct {
	Cloud CloudArea     `json:"cloud"`
	Zone  int           `json:"zone,omitempty"` // zone of a rollout, see [RolloutPlan.Zones]; 0 = none
	First int           `json:"first"`
	Specs []ProcessSpec `json:"specs"`
	Items []Item        `json:"items"`
}

// Spec returns the process spec of the i-th item of the chunk.
func (c *Chunk) Spec(i int) *ProcessSpec { return &c.Specs[c.Items[i].Spec] }
