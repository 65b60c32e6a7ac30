package dialect

import (
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// ShowDrift compares a process of the catalog with the reports of agents.
type ShowDrift = Codec[DriftQuery, *Drift]

// DriftQuery asks for the state of a process on the hosts of the modules to which it
// is bound.
type DriftQuery struct {
	Business catalog.Business `json:"business"`
	ID       int64            `json:"id"`
	// Modules selects modules by name; none is all to which the process is bound.
	Modules []string `json:"modules,omitempty"`
	// Limit is how many hosts are listed, 0 or more. Every host is counted.
	Limit int `json:"limit"`
}

// Drift is the difference between the wanted and the actual state of a process.
type Drift struct {
	ID      int64                 `json:"id"`
	Process procfleet.ProcessSpec `json:"process"` // as the catalog has it
	Total   int                   `json:"total"`   // of hosts that are counted
	Counts  map[v1.DriftState]int `json:"counts"`
	Modules []ModuleDrift         `json:"modules"` // by name, those of one name in the order of the topology
	// Missing are modules to which the process is bound and that do not exist in the
	// topology.
	Missing []string `json:"missing"`
	// Elsewhere are hosts outside its modules where it is registered.
	Elsewhere []procfleet.Host `json:"elsewhere"`
	// Hosts are sorted: first the hosts that drifted, then those where it runs, each by
	// cloud area and address.
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
	Modules []string       `json:"modules"` // modules of the process that have the host, as <set>/<module>
	// Remarks are all states but [v1.DriftRunning] that apply, in their order.
	Remarks []v1.DriftState `json:"remarks"`
	// Reported is the last report, nil if there is none; it may be out of date if the
	// agent is missing.
	Reported   *catalog.ReportedProcess `json:"reported"`
	ReportedAt time.Time                `json:"reported_at"`
}

// State is the first of the remarks, or [v1.DriftRunning].
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
