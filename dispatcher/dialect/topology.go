package dialect

import (
	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// Endpoints of the topology of a business: its sets, their modules, and the
// hosts of the modules.

// SetTopology replaces a topology; the result is its new version.
type SetTopology = Codec[TopologyChange, int64]

// TopologyChange is a new topology.
type TopologyChange struct {
	Business catalog.Business `json:"business"`
	// Version is the version to replace; -1 is any.
	Version      int64         `json:"version"`
	AutoRegister *bool         `json:"auto_register,omitempty"` // nil: as it is
	Sets         []catalog.Set `json:"sets"`
}

// EditTopology changes a part of a topology; the result is its new version.
type EditTopology = Codec[TopologyEdit, int64]

// TopologyEdit changes either the hosts of one module, or AutoRegister.
type TopologyEdit struct {
	Business     catalog.Business `json:"business"`
	Set          string           `json:"set,omitempty"`
	Module       string           `json:"module,omitempty"`
	Hosts        []procfleet.Host `json:"hosts,omitempty"`
	AutoRegister *bool            `json:"auto_register,omitempty"` // nil: hosts are changed
}

// ShowTopology returns a topology.
type ShowTopology = Codec[TopologyQuery, TopologyShown]

// TopologyQuery asks for the topology of a business, and, unless WithoutAgents is
// set, for its hosts without agents and agents without modules.
type TopologyQuery struct {
	Business      catalog.Business `json:"business"`
	WithoutAgents bool             `json:"without_agents,omitempty"`
}

// TopologyShown is a topology and its differences from the live agents. Differences
// that were not requested are nil.
type TopologyShown struct {
	Topology *catalog.Topology `json:"topology"`
	// WithoutAgent are hosts of modules without a live agent, each once, in the order
	// of the topology.
	WithoutAgent []procfleet.Host `json:"without_agent"`
	// WithoutModule are hosts with a live agent that are in no module of the business,
	// by cloud area and address: [MaxUnplaced] at most. It is nil for callers that may
	// not list every host.
	WithoutModule []procfleet.Host `json:"without_module"`
}

// MaxUnplaced is the maximum number of hosts in WithoutModule.
const MaxUnplaced = 1000
