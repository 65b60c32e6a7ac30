package dialect

import (
	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// Endpoints that create no task: registrations, reported states, groups and
// agents. Results have the order of the targets in the request.

// Register registers processes, or removes registrations.
type Register = Codec[Registering, []TargetOutcome]

// RegisterMode selects how registrations change.
type RegisterMode string

// The modes.
const (
	// RegisterNew keeps existing registrations: code 850.
	RegisterNew RegisterMode = "new"
	// RegisterAny creates or replaces registrations.
	RegisterAny RegisterMode = "any"
	// Unregister removes registrations and releases supervised processes, which
	// continue to run. Without a registration: code 829.
	Unregister RegisterMode = "unregister"
)

// Registering registers or unregisters one process on targets.
type Registering struct {
	Business string                `json:"business,omitempty"`
	Mode     RegisterMode          `json:"mode"`
	Process  procfleet.ProcessSpec `json:"process"` // to unregister: namespace and name
	Targets  []procfleet.Target    `json:"targets"`
}

// TargetOutcome is the outcome of one target of a call that creates no task. The
// message is "success" exactly for success. A target of an unknown agent has no
// host: code 117.
type TargetOutcome struct {
	Target  procfleet.Target `json:"target"`
	Code    procfleet.Code   `json:"code"`
	Message string           `json:"message"`
}

// SetGroups replaces process groups.
type SetGroups = Codec[Grouping, []TargetOutcome]

// Grouping sets the same groups on every target. Its Groups have no host.
type Grouping struct {
	Business string             `json:"business,omitempty"`
	Groups   catalog.HostGroups `json:"groups"`
	Targets  []procfleet.Target `json:"targets"`
}

// ShowGroups returns process groups.
type ShowGroups = Codec[GroupQuery, []TargetGroups]

// GroupQuery asks for the groups of a namespace on hosts.
type GroupQuery struct {
	Business  string             `json:"business,omitempty"`
	Namespace string             `json:"namespace"`
	Targets   []procfleet.Target `json:"targets"`
}

// TargetGroups are the groups of one target.
type TargetGroups struct {
	Target procfleet.Target   `json:"target"`
	Groups catalog.HostGroups `json:"groups"`
}

// ShowProcesses returns one process on many hosts.
type ShowProcesses = Codec[ProcessQuery, []ProcessEntry]

// ProcessQuery asks for the state of a process on hosts.
type ProcessQuery struct {
	Business  string             `json:"business,omitempty"`
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	Targets   []procfleet.Target `json:"targets"`
}

// ProcessEntry is the state of one process on one target. A process that is neither
// registered nor reported has only Target and Process.
type ProcessEntry struct {
	Target procfleet.Target `json:"target"` // of a list: the host and its agent's id
	catalog.Entry
	// Alive is whether the host has a live agent. If not, the report may be out of date.
	Alive bool `json:"alive"`
}

// ListProcesses returns a page of the processes of a namespace.
type ListProcesses = Codec[ProcessPage, ProcessEntries]

// ProcessPage asks for up to Limit processes of a namespace after the first Start.
type ProcessPage struct {
	Business  string `json:"business,omitempty"`
	Namespace string `json:"namespace"`
	Start     int    `json:"start"`
	Limit     int    `json:"limit"` // 1 to 1000
}

// ProcessEntries is a page of processes, and how many the namespace has.
type ProcessEntries struct {
	Entries []ProcessEntry `json:"entries"`
	Total   int            `json:"total"`
}

// ShowAgents returns the agents of hosts.
type ShowAgents = Codec[AgentQuery, []TargetAgent]

// AgentQuery asks for the agents of targets.
type AgentQuery struct {
	Business string             `json:"business,omitempty"`
	Targets  []procfleet.Target `json:"targets"`
}

// TargetAgent is the live agent of one target; nil if there is none.
type TargetAgent struct {
	Target procfleet.Target `json:"target"`
	Agent  *v1.Agent        `json:"agent"`
}

// BindAgents binds agent ids to hosts.
type BindAgents = Codec[AgentBinding, []bool]

// AgentBinding has targets with a host and an agent id.
type AgentBinding struct {
	Business string             `json:"business,omitempty"`
	Targets  []procfleet.Target `json:"targets"`
}
