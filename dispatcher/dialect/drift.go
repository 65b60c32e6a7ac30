package dialect

import (
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// ShowDrift is the endpoint that compares a process of the catalog with the reports of
// agents.
type ShowDrift = Codec[DriftQuery, *Drift]

// DriftQuery requests the state of a process on the hosts of the modules to which it is
// bound.
type DriftQuery struct {
	Business catalog.Business `json:"business"`
	ID       int64            `json:"id"`
	// Modules selects modules by name. An empty list selects all modules to which the
	// process is bound.
	Modules []string `json:"modules,omitempty"`
	// Limit is the maximum number of listed hosts, 0 or more. The counts include every
	// host.
	Limit int `json:"limit"`
}

// Drift is the difference between the desired and the reported state of a process.
type Drift struct {
	ID      int64                 `json:"id"`
	Process procfleet.ProcessSpec `json:"process"` // as defined in the catalog
	Total   int                   `json:"total"`   // number of compared hosts
	Counts  map[v1.DriftState]int `json:"counts"`
	Modules []ModuleDrift         `json:"modules"` // sorted by name; modules of one name in the order of the topology
	// Missing are the names of modules to which the process is bound and that do not
	// exist in the topology.
	Missing []string `json:"missing"`
	// Elsewhere are the hosts outside the modules of the process on which the process is
	// registered.
	Elsewhere []procfleet.Host `json:"elsewhere"`
	// Hosts are first the hosts that drifted, then the hosts on which the process runs
	// as desired, each sorted by cloud area and address.
	Hosts []HostDrift `json:"hosts"`
}

// ModuleDrift is the state of a process in one module.
type ModuleDrift struct {
	Set    string                `json:"set"`
	Module string                `json:"module"`
	Hosts  int                   `json:"hosts"`
	Counts map[v1.DriftState]int `json:"counts"`
}

// HostDrift is the state of a process on one host.
type HostDrift struct {
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id"`
	Modules []string       `json:"modules"` // modules of the process that contain the host, as <set>/<module>
	// Remarks are all states that apply except [v1.DriftRunning], in the order of
	// [DriftStates].
	Remarks []v1.DriftState `json:"remarks"`
	// Reported is the last report of the agent; nil if there is none. It may be outdated
	// if the agent is not live.
	Reported   *catalog.ReportedProcess `json:"reported"`
	ReportedAt time.Time                `json:"reported_at"`
}

// State returns the first remark, or [v1.DriftRunning] if there is none.
func (h *HostDrift) State() v1.DriftState {
	if len(h.Remarks) == 0 {
		return v1.DriftRunning
	}
	return h.Remarks[0]
}

// DriftStates returns all states by precedence: the state of a host is the first that
// applies.
func DriftStates() []v1.DriftState {
	return []v1.DriftState{v1.DriftAgentMissing, v1.DriftDown, v1.DriftUnsupervised, v1.DriftSpecDiffers, v1.DriftRunning}
}
