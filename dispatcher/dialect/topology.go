package dialect

import (
	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// Endpoints of the topology of a business: its sets, their modules, and the
// hosts of the modules.

// SetTopology is the endpoint that replaces a topology. The result is the new topology; it
// contains the sets only if the change was planned.
type SetTopology = Codec[TopologyChange, TopologyShown]

// TopologyChange is a request to replace the topology of a business.
type TopologyChange struct {
	Business catalog.Business `json:"business"`
	// Version is the version to replace; -1 replaces any version.
	Version      int64         `json:"version"`
	AutoRegister *bool         `json:"auto_register,omitempty"` // nil keeps the stored value
	Sets         []catalog.Set `json:"sets"`
	Planned      bool          `json:"planned,omitempty"` // nothing changes
}

// EditTopology is the endpoint that changes a part of a topology. The result is its new
// version.
type EditTopology = Codec[TopologyEdit, int64]

// TopologyEdit is a request to change either the hosts of one module, or AutoRegister.
type TopologyEdit struct {
	Business     catalog.Business `json:"business"`
	Set          string           `json:"set,omitempty"`
	Module       string           `json:"module,omitempty"`
	Hosts        []procfleet.Host `json:"hosts,omitempty"`
	AutoRegister *bool            `json:"auto_register,omitempty"` // nil changes the hosts
}

// ShowTopology is the endpoint that returns a topology.
type ShowTopology = Codec[TopologyQuery, TopologyShown]

// TopologyQuery requests the topology of a business, and, unless WithoutAgents is set,
// its hosts without agents and the agents without modules.
type TopologyQuery struct {
	Business      catalog.Business `json:"business"`
	WithoutAgents bool             `json:"without_agents,omitempty"`
}

// TopologyShown is a topology and its differences from the live agents. Differences that
// were not requested are nil.
type TopologyShown struct {
	Topology *catalog.Topology `json:"topology"`
	// WithoutAgent are the hosts of modules that have no live agent, each once, in the
	// order of the topology.
	WithoutAgent []procfleet.Host `json:"without_agent"`
	// WithoutModule are the hosts that have a live agent and are in no module of the
	// business, sorted by cloud area and address, at most [MaxUnplaced]. It is nil if
	// the caller may not list every host.
	WithoutModule []procfleet.Host `json:"without_module"`
	// Labeled are the hosts that modules have because of their labels.
	Labeled []v1.LabeledModule `json:"labeled,omitempty"`
}

// MaxUnplaced is the maximum number of hosts in WithoutModule.
const MaxUnplaced = 1000
