package v1

import (
	"encoding/json"
	"time"

	"github.com/procfleet/procfleet"
)

// Targets are the hosts of a request, by address or by agent id.
type Targets struct {
	Hosts  []procfleet.Host `json:"hosts,omitempty"`
	Agents []string         `json:"agents,omitempty"`
	// Business is the business on whose behalf the caller acts. Applications
	// that are limited to some businesses must set it.
	Business string `json:"business,omitempty"`
}

// Count returns the number of hosts and agent ids together.
func (t *Targets) Count() int { return len(t.Hosts) + len(t.Agents) }

// Outcomes is the response to a request that creates no task: one outcome for
// each of the hosts, then for each of the agent ids.
type Outcomes struct {
	Results []Outcome `json:"results"`
}

// Outcome is the effect of a request on one host.
type Outcome struct {
	// Host is zero if the caller named an agent id that no agent has announced.
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id,omitempty"` // agent id in the request
	Code    procfleet.Code `json:"code"`
	Message string         `json:"message"` // "success" for code 0
}

// RegisterRequest is the body of PUT and POST /v1/registrations.
type RegisterRequest struct {
	// Process must have a namespace and a name. Commands are optional here, and
	// checked when an action requires them.
	Process procfleet.ProcessSpec `json:"process"`
	Strict  *bool                 `json:"strict,omitempty"` // as in [TaskOptions]
	Targets
}

// ProcessRequest is the body of POST /v1/registrations/remove and of POST
// /v1/processes/query: one process on hosts.
type ProcessRequest struct {
	Process Identity `json:"process"`
	Targets
}

// Identity identifies a process on each of its hosts.
type Identity struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Process is the registration and the last report of one process on one host.
type Process struct {
	// Host is zero if the caller named an agent id that no agent has announced.
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id,omitempty"`
	// Alive reports whether the host has a live agent; if not, Reported is outdated.
	Alive        bool          `json:"alive"`
	Namespace    string        `json:"namespace"`
	Name         string        `json:"name"`
	Registration *Registration `json:"registration"` // nil if the process is not registered
	Reported     *Reported     `json:"reported"`     // nil if no agent reported the process
}

// FleetProcess is a process in the last report of a host with a live agent.
type FleetProcess struct {
	Host      procfleet.Host    `json:"host"`
	AgentID   string            `json:"agent_id,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"` // of the host; see [Agent]
	Key       string            `json:"key"`
	Namespace string            `json:"namespace,omitempty"`
	Name      string            `json:"name,omitempty"`
	// Drift lists how the process differs from its registration; nil if not requested.
	Drift []DriftState `json:"drift,omitzero"`
	Reported
}

// FleetProcessPage is the response to GET /v1/hosts/processes, by cloud area and address.
// Next is the "after" parameter of the next page, empty at the end. A page may be short or
// empty although another page follows.
type FleetProcessPage struct {
	Processes []FleetProcess `json:"processes"`
	Next      string         `json:"next"`
}

// OutputPage is the response to GET /v1/processes/output.
type OutputPage struct {
	// Data is standard output and standard error of the process; control characters other than
	// line feed and tab are escaped as \u and four digits.
	Data string `json:"data"`
	Next string `json:"next"` // the cursor of the following page
	More bool   `json:"more"` // the following page has data already
	Lost bool   `json:"lost"` // output between the cursor and Data is gone
}

// Registration is the server's stored spec of a process on a host.
type Registration struct {
	Process      procfleet.ProcessSpec `json:"process"`
	RegisteredAt time.Time             `json:"registered_at"` // time of the first registration
}

// Reported is the last report of an agent about a process.
type Reported struct {
	ProcName string `json:"proc_name"`
	// Desired is the state that the agent maintains: "up" is supervised, "down"
	// is stopped or killed on request, "none" is unsupervised.
	Desired    string                  `json:"desired"`
	Status     procfleet.ProcessStatus `json:"status"`
	ReportedAt time.Time               `json:"reported_at"`
}

// ProcessList is the response to POST /v1/processes/query.
type ProcessList struct {
	Processes []Process `json:"processes"` // in the order of the [Targets]
}

// ProcessPage is a page of the processes of a namespace, by name and then by
// host. Next is the start of the next page, empty at the end.
type ProcessPage struct {
	Processes []Process `json:"processes"`
	Total     int       `json:"total"` // number of processes in the namespace
	Next      string    `json:"next"`
}

// Grouping contains the groups of one namespace.
type Grouping struct {
	Namespace string `json:"namespace"`
	// Name and Labels are annotations of the caller; label values are JSON
	// scalars.
	Name   string                     `json:"name,omitempty"`
	Labels map[string]json.RawMessage `json:"labels,omitempty"`
	Groups []Group                    `json:"groups"`
}

// Group limits the share of a host that the processes of one namespace use.
type Group struct {
	ID string `json:"id"`
	// Limits are in percent of the host; 0 is no limit.
	CPULimit    float64 `json:"cpu_limit"`
	MemoryLimit float64 `json:"memory_limit"`
	// Above a limit, the agent kills the process of the group that uses most.
	// ByLimit prefers to kill processes with a small limit of their own.
	CPUByLimit    bool `json:"cpu_by_limit"`
	MemoryByLimit bool `json:"memory_by_limit"`
}

// GroupsRequest is the body of PUT /v1/groups. Groups replace those of the
// namespace on the hosts; an empty list removes them, and nil is rejected.
type GroupsRequest struct {
	Grouping
	Targets
}

// LabelsRequest is the body of PUT /v1/labels: labels are removed by their keys, then set.
type LabelsRequest struct {
	Set    map[string]string `json:"set,omitempty"`
	Remove []string          `json:"remove,omitempty"`
	Targets
}

// GroupsQuery is the body of POST /v1/groups/query.
type GroupsQuery struct {
	Namespace string `json:"namespace"`
	Targets
}

// HostGroups are the groups of one namespace on one host; Groups is never nil.
type HostGroups struct {
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id,omitempty"`
	Grouping
}

// HostGroupsList is the response to POST /v1/groups/query.
type HostGroupsList struct {
	Hosts []HostGroups `json:"hosts"` // in the order of the [Targets]
}
