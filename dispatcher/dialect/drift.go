package dialect

import (
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// ShowDrift compares a process of the catalog with the reports of agents.
type ShowDrift = Codec[DriftQuery, *Drift]

// DriftQuery asks how a process stands on the hosts of the modules that it is
// bound to.
type DriftQuery struct {
	Business catalog.Business `json:"business"`
	ID       int64            `json:"id"`
	// Modules leaves out hosts that are in no module of these names; none is
	// all that the process is bound to.
	Modules []string `json:"modules,omitempty"`
	// Limit is how many hosts are listed, 0 or more. Every host is counted.
	Limit int `json:"limit"`
}

// Drift is how a process stands.
type Drift struct {
	ID      int64                 `json:"id"`
	Process procfleet.ProcessSpec `json:"process"` // as the catalogue has it
	Total   int                   `json:"total"`   // of hosts that are counted
	Counts  map[v1.DriftState]int `json:"counts"`
	Modules []ModuleDrift         `json:"modules"` // by name, those of one name in the order of the topology
	// Missing are the modules that the process is bound to and that the
	// topology does not have.
	Missing []string `json:"missing"`
	// Elsewhere are hosts in none of its modules where it is registered.
	Elsewhere []procfleet.Host `json:"elsewhere"`
	// Hosts are those that drifted before those on which it runs, each by cloud
	// area and address.
	Hosts []HostDrift `json:"hosts"`
}

// ModuleDrift is how a process stands in one module.
type ModuleDrift struct {
	Set    string                `json:"set"`
	Module string                `json:"module"`
	Hosts  int                   `json:"hosts"`
	Counts map[v1.DriftState]int `json:"counts"`
}

// HostDrift is how a process stands on one host.
type HostDrift struct {
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id"`
	Modules []string       `json:"modules"` // of the process in which the host is, as <set>/<module>
	// Remarks are all states but [v1.DriftRunning] that apply, in their order.
	Remarks []v1.DriftState `json:"remarks"`
	// Reported is what was reported last, nil if nothing was; old news where
	// the agent is missing.
	Reported   *catalog.ReportedProcess `json:"reported"`
	ReportedAt time.Time                `json:"reported_at"`
}

// State is the first of the remarks, or that the process runs.
func (h *HostDrift) State() v1.DriftState {
	if len(h.Remarks) == 0 {
		return v1.DriftRunning
	}
	return h.Remarks[0]
}

// DriftStates returns all states. A host's state is the first that applies.
func DriftStates() []v1.DriftState {
	return []v1.DriftState{v1.DriftAgentMissing, v1.DriftDown, v1.DriftUnsupervised, v1.DriftSpecDiffers, v1.DriftRunning}
}
