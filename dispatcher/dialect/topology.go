package dialect

import (
	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// Endpoints of the topology of a business: its sets, their modules, and the
// hosts of the modules.

// SetTopology replaces a topology; the result is its new version.
type SetTopology = Codec[TopologyChange, int64]

// TopologyChange is what a topology is to become.
type TopologyChange struct {
	Business catalog.Business `json:"business"`
	// Version is what is replaced; -1 is whatever there is.
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

// TopologyQuery asks for the topology of a business, and for what there is of
// agents in it unless that is left out.
type TopologyQuery struct {
	Business      catalog.Business `json:"business"`
	WithoutAgents bool             `json:"without_agents,omitempty"`
}

// TopologyShown is a topology, and where it and the agents that there are do
// not agree. What was not asked for is nil.
type TopologyShown struct {
	Topology *catalog.Topology `json:"topology"`
	// WithoutAgent are hosts of modules on which no agent lives, each once, in
	// the order of the topology.
	WithoutAgent []procfleet.Host `json:"without_agent"`
	// WithoutModule are hosts on which an agent lives and that are in no module
	// of the business, by cloud area and address: [MaxUnplaced] at most. Those
	// who may not see every host are not told.
	WithoutModule []procfleet.Host `json:"without_module"`
}

// MaxUnplaced is how many hosts without a module are told at most.
const MaxUnplaced = 1000
