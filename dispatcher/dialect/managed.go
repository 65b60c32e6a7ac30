package dialect

import (
	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// Endpoints that create no task: registrations, reported states, groups and agents.
// Results have the order of the targets in the request.

// Register is the endpoint that registers processes or removes registrations.
type Register = Codec[Registering, []TargetOutcome]

// RegisterMode is how a [Registering] changes registrations.
type RegisterMode string

// The modes.
const (
	// RegisterNew creates registrations. A target that already has one keeps it, and its
	// outcome has code 850.
	RegisterNew RegisterMode = "new"
	// RegisterAny creates or replaces registrations.
	RegisterAny RegisterMode = "any"
	// Unregister removes registrations and releases supervised processes, which continue
	// to run. The outcome of a target without a registration has code 829.
	Unregister RegisterMode = "unregister"
)

// Registering is a request to register or unregister one process on its targets.
type Registering struct {
	Business string                `json:"business,omitempty"`
	Mode     RegisterMode          `json:"mode"`
	Process  procfleet.ProcessSpec `json:"process"` // to unregister: only namespace and name
	Targets  []procfleet.Target    `json:"targets"`
}

// TargetOutcome is the outcome for one target of a call that creates no task. Message is
// "success" if and only if the call succeeded for the target. A target of an unknown
// agent has no host and the code 117.
type TargetOutcome struct {
	Target  procfleet.Target `json:"target"`
	Code    procfleet.Code   `json:"code"`
	Message string           `json:"message"`
}

// SetGroups is the endpoint that replaces the process groups of a namespace on hosts.
type SetGroups = Codec[Grouping, []TargetOutcome]

// Grouping is a request to set the same groups on every target. The Host of Groups is
// zero.
type Grouping struct {
	Business string             `json:"business,omitempty"`
	Groups   catalog.HostGroups `json:"groups"`
	Targets  []procfleet.Target `json:"targets"`
}

// LabelHosts is the endpoint that changes the labels of hosts that the server stores.
type LabelHosts = Codec[LabelChange, []TargetOutcome]

// LabelChange requests a change of labels on targets.
type LabelChange struct {
	Business string             `json:"business,omitempty"`
	Labels   catalog.Labeling   `json:"labels"`
	Targets  []procfleet.Target `json:"targets"`
}

// ShowGroups is the endpoint that returns the process groups of a namespace on hosts.
type ShowGroups = Codec[GroupQuery, []TargetGroups]

// GroupQuery requests the groups of a namespace on targets.
type GroupQuery struct {
	Business  string             `json:"business,omitempty"`
	Namespace string             `json:"namespace"`
	Targets   []procfleet.Target `json:"targets"`
}

// TargetGroups is the groups of a namespace on one target.
type TargetGroups struct {
	Target procfleet.Target   `json:"target"`
	Groups catalog.HostGroups `json:"groups"`
}

// ShowProcesses is the endpoint that returns the state of one process on many hosts.
type ShowProcesses = Codec[ProcessQuery, []ProcessEntry]

// ProcessQuery requests the state of one process on targets.
type ProcessQuery struct {
	Business  string             `json:"business,omitempty"`
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	Targets   []procfleet.Target `json:"targets"`
}

// ProcessEntry is the state of one process on one target. A process that is neither
// registered nor reported has only Target and Process.
type ProcessEntry struct {
	Target procfleet.Target `json:"target"` // in a page: the host and the id of its agent
	catalog.Entry
	// Alive reports whether the host has a live agent. Without one, the report may be
	// outdated.
	Alive bool `json:"alive"`
}

// ListProcesses is the endpoint that returns a page of the processes of a namespace.
type ListProcesses = Codec[ProcessPage, ProcessEntries]

// ProcessPage requests up to Limit processes of a namespace after the first Start.
type ProcessPage struct {
	Business  string `json:"business,omitempty"`
	Namespace string `json:"namespace"`
	Start     int    `json:"start"`
	Limit     int    `json:"limit"` // 1 to 1000
}

// ProcessEntries is a page of processes. Total is the number of processes of the
// namespace.
type ProcessEntries struct {
	Entries []ProcessEntry `json:"entries"`
	Total   int            `json:"total"`
}

// ShowAgents is the endpoint that returns the agents of hosts.
type ShowAgents = Codec[AgentQuery, []TargetAgent]

// AgentQuery requests the agents of targets.
type AgentQuery struct {
	Business string             `json:"business,omitempty"`
	Targets  []procfleet.Target `json:"targets"`
}

// TargetAgent is the live agent of one target. Agent is nil if there is none.
type TargetAgent struct {
	Target procfleet.Target `json:"target"`
	Agent  *v1.Agent        `json:"agent"`
}

// BindAgents is the endpoint that binds agent ids to hosts. The result reports for each
// target whether the id was bound. An id is not bound if the host has no live agent, or
// an agent with another id.
type BindAgents = Codec[AgentBinding, []bool]

// AgentBinding is a request to bind agent ids. Each target has a host and an agent id.
type AgentBinding struct {
	Business string             `json:"business,omitempty"`
	Targets  []procfleet.Target `json:"targets"`
}
