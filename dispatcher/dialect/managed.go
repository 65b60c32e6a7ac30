package dialect

import (
	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// The uses of calls that make no task: what is registered, reported and
// grouped, and which agents there are. Each decodes into a question, and
// encodes the answer beside the question, in the order in which was asked.

// Register is the use of calls that keep what processes are, or take it away.
type Register struct {
	Decode func(r *Request) (Registering, error)
	Encode func(q *Registering, outcomes []TargetOutcome, requestID string) Reply
}

// RegisterMode says what happens to registrations.
type RegisterMode string

// The modes.
const (
	// RegisterNew leaves what is registered alone: 850.
	RegisterNew RegisterMode = "new"
	// RegisterAny makes or replaces.
	RegisterAny RegisterMode = "any"
	// Unregister takes away, and lets go of what is supervised; the process
	// itself is left alone. What is not registered: 829.
	Unregister RegisterMode = "unregister"
)

// Registering is what is to be registered, or no longer.
type Registering struct {
	Business string                `json:"business,omitempty"`
	Mode     RegisterMode          `json:"mode"`
	Process  procfleet.ProcessSpec `json:"process"` // to unregister: namespace and name
	Targets  []procfleet.Target    `json:"targets"`
}

// TargetOutcome is what came of one target of a call that makes no task. The
// message is "success" exactly for success. A target without a host is one
// whose agent nobody knows: 117.
type TargetOutcome struct {
	Target  procfleet.Target `json:"target"`
	Code    procfleet.Code   `json:"code"`
	Message string           `json:"message"`
}

// SetGroups is the use of calls that group processes.
type SetGroups struct {
	Decode func(r *Request) (Grouping, error)
	Encode func(q *Grouping, outcomes []TargetOutcome, requestID string) Reply
}

// Grouping gives the same groups to every target. Its Groups have no host.
type Grouping struct {
	Business string             `json:"business,omitempty"`
	Groups   catalog.HostGroups `json:"groups"`
	Targets  []procfleet.Target `json:"targets"`
}

// ShowGroups is the use of calls that answer with groups.
type ShowGroups struct {
	Decode func(r *Request) (GroupQuery, error)
	Encode func(q *GroupQuery, found []TargetGroups, requestID string) Reply
}

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

// ShowProcesses is the use of calls that answer with one process on many hosts.
type ShowProcesses struct {
	Decode func(r *Request) (ProcessQuery, error)
	Encode func(q *ProcessQuery, found []ProcessEntry, requestID string) Reply
}

// ProcessQuery asks how a process stands on hosts.
type ProcessQuery struct {
	Business  string             `json:"business,omitempty"`
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	Targets   []procfleet.Target `json:"targets"`
}

// ProcessEntry is how one process stands on one target. What is neither
// registered nor reported has only Target and Process.
type ProcessEntry struct {
	Target procfleet.Target `json:"target"` // of a list: the host and its agent's id
	catalog.Entry
	// Alive is whether the host's agent was heard of lately: what was reported
	// before is old news otherwise.
	Alive bool `json:"alive"`
}

// ListProcesses is the use of calls that page through a namespace.
type ListProcesses struct {
	Decode func(r *Request) (ProcessPage, error)
	Encode func(p *ProcessPage, found []ProcessEntry, total int, requestID string) Reply
}

// ProcessPage asks for up to Limit processes of a namespace after the first Start.
type ProcessPage struct {
	Business  string `json:"business,omitempty"`
	Namespace string `json:"namespace"`
	Start     int    `json:"start"`
	Limit     int    `json:"limit"` // 1 to 1000
}

// ShowAgents is the use of calls that answer with the agents of hosts.
type ShowAgents struct {
	Decode func(r *Request) (AgentQuery, error)
	Encode func(q *AgentQuery, found []TargetAgent, requestID string) Reply
}

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

// BindAgents is the use of calls that tell under which agent ids hosts will be
// named from now on.
type BindAgents struct {
	Decode func(r *Request) (AgentBinding, error)
	Encode func(q *AgentBinding, bound []bool, requestID string) Reply
}

// AgentBinding has targets with a host and an agent id.
type AgentBinding struct {
	Business string             `json:"business,omitempty"`
	Targets  []procfleet.Target `json:"targets"`
}

func (Register) use()      {}
func (SetGroups) use()     {}
func (ShowGroups) use()    {}
func (ShowProcesses) use() {}
func (ListProcesses) use() {}
func (ShowAgents) use()    {}
func (BindAgents) use()    {}
