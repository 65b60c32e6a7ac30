package v1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/procfleet/procfleet"
)

// CatalogProcess is a process that a business defines once for all hosts of
// the modules to which it is bound. In JSON its attributes are at the same level
// as the other members.
type CatalogProcess struct {
	// ID, CreatedAt and ChangedAt are set by the server and ignored in requests.
	ID int64
	// Attributes maps names in the API, such as "name" and "start_cmd", to
	// values: nil, a string, an int64 or a bool.
	Attributes map[string]any
	// Modules are the names of the modules to which the process is bound; in a
	// request, nil leaves the bindings unchanged.
	Modules   []string
	CreatedAt time.Time
	ChangedAt time.Time
}

// Name returns the name of the process.
func (p *CatalogProcess) Name() string {
	name, _ := p.Attributes["name"].(string)
	return name
}

// Members of the JSON of a [CatalogProcess] that are not attributes.
const (
	MemberID        = "id"
	MemberModules   = "modules"
	MemberCreatedAt = "created_at"
	MemberChangedAt = "changed_at"
)

// MarshalJSON encodes a request body: attributes and modules.
func (p CatalogProcess) MarshalJSON() ([]byte, error) {
	members := make(map[string]any, len(p.Attributes)+1)
	maps.Copy(members, p.Attributes)
	if p.Modules != nil {
		members[MemberModules] = p.Modules
	}
	return json.Marshal(members)
}

// UnmarshalJSON decodes a response body.
func (p *CatalogProcess) UnmarshalJSON(text []byte) error {
	var known struct {
		ID        int64     `json:"id"`
		Modules   []string  `json:"modules"`
		CreatedAt time.Time `json:"created_at"`
		ChangedAt time.Time `json:"changed_at"`
	}
	if err := json.Unmarshal(text, &known); err != nil {
		return err
	}
	*p = CatalogProcess{ID: known.ID, Modules: known.Modules, CreatedAt: known.CreatedAt, ChangedAt: known.ChangedAt}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&p.Attributes); err != nil {
		return err
	}
	for _, name := range []string{MemberID, MemberModules, MemberCreatedAt, MemberChangedAt} {
		delete(p.Attributes, name)
	}
	for name, value := range p.Attributes {
		number, ok := value.(json.Number)
		if !ok {
			continue
		}
		n, err := number.Int64()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p.Attributes[name] = n
	}
	return nil
}

// CatalogPage is a page of the processes of a business, by name. Next is the
// start of the next page, empty at the end.
type CatalogPage struct {
	Processes []CatalogProcess `json:"processes"`
	Total     int              `json:"total"` // number of matching processes on all pages
	Next      string           `json:"next"`
}

// CatalogRequest is the body of PUT /v1/catalogue/{biz}: 1 to 1000 processes
// with distinct names.
type CatalogRequest struct {
	Processes []CatalogProcess `json:"processes"`
}

// CatalogDeleted is the response to DELETE /v1/catalogue/{business}/{process}. Deleted is
// false if the catalog had no such process.
type CatalogDeleted struct {
	Deleted bool `json:"deleted"`
}

// CatalogSaved is the response to a [CatalogRequest], in the same order.
type CatalogSaved struct {
	Processes []SavedProcess `json:"processes"`
	// Task notifies the agents of changed bindings; nil if no binding changed.
	Task *procfleet.TaskID `json:"task"`
}

// SavedProcess is the outcome of one process of a [CatalogRequest].
type SavedProcess struct {
	Name    string      `json:"name"`
	ID      int64       `json:"id,omitempty"` // 0 if the process would be created by a plan
	Outcome SaveOutcome `json:"outcome"`
	Changes []string    `json:"changes"` // names of the changed members, if Outcome is [SavedChanged]
}

// SaveOutcome is the effect of a save on a process.
type SaveOutcome string

// Values of [SaveOutcome].
const (
	SavedNew     SaveOutcome = "created"
	SavedChanged SaveOutcome = "changed"
	SavedSame    SaveOutcome = "unchanged"
)

// Topology contains the sets, modules and hosts of a business.
type Topology struct {
	Version int64 `json:"version"` // number of changes; 0 if the business has no topology
	// AutoRegister notifies the agents of a module's hosts as soon as a process
	// is bound to the module.
	AutoRegister bool          `json:"auto_register"`
	Sets         []TopologySet `json:"sets"`
	// WithoutAgent are hosts of modules that have no live agent; nil if not
	// requested.
	WithoutAgent []procfleet.Host `json:"without_agent"`
	// WithoutModule are up to 1000 hosts with a live agent that are in no
	// module; nil if not requested, and for applications that are limited to
	// some businesses.
	WithoutModule []procfleet.Host `json:"without_module"`
	// Labeled are the hosts that modules have because of their labels; nil if no module has
	// labels, and if not requested.
	Labeled []LabeledModule `json:"labeled,omitempty"`
}

// LabeledModule lists the hosts with a live agent that match the labels of a module.
type LabeledModule struct {
	Set    string           `json:"set"`
	Module string           `json:"module"`
	Hosts  []procfleet.Host `json:"hosts"`
}

// TopologySet is a group of modules.
type TopologySet struct {
	Name    string           `json:"name"`
	Modules []TopologyModule `json:"modules"`
}

// TopologyModule is a group of hosts that run the same processes.
type TopologyModule struct {
	Name    string           `json:"name"`
	Default int64            `json:"default"` // nonzero: module for idle or defective hosts
	Hosts   []procfleet.Host `json:"hosts"`
	// Labels are filters such as "role=web": the hosts that have a live agent and match all of
	// them are in the module as well.
	Labels []string `json:"labels,omitempty"`
}

// TopologyRequest is the body of PUT /v1/topology/{biz}. A [Topology] is also a
// valid body; it replaces the version that it contains, and its additional
// members are ignored.
type TopologyRequest struct {
	Version      *int64        `json:"version,omitempty"`       // version to replace; nil: any
	AutoRegister *bool         `json:"auto_register,omitempty"` // nil: unchanged
	Sets         []TopologySet `json:"sets"`                    // nil is rejected
}

// TopologyEdit is the body of PATCH /v1/topology/{biz}: either the hosts of one
// module, or AutoRegister.
type TopologyEdit struct {
	Set          string           `json:"set,omitempty"`
	Module       string           `json:"module,omitempty"`
	Hosts        []procfleet.Host `json:"hosts,omitzero"` // new hosts of the module
	AutoRegister *bool            `json:"auto_register,omitempty"`
}

// TopologyVersion is the response to a change of a topology.
type TopologyVersion struct {
	Version int64 `json:"version"`
}

// Drift compares a process of the catalog with the last reports of agents on the
// hosts of the modules to which the process is bound.
type Drift struct {
	ID             int64            `json:"id"`
	Namespace      string           `json:"namespace"` // namespace on the hosts, where Namespace and Name identify the process
	Name           string           `json:"name"`
	Total          int              `json:"total"` // number of hosts
	Counts         DriftCounts      `json:"counts"`
	Modules        []ModuleDrift    `json:"modules"`
	MissingModules []string         `json:"missing_modules"` // modules of the bindings that are not in the topology
	Elsewhere      []procfleet.Host `json:"elsewhere"`       // hosts of other modules on which the process is registered
	Hosts          []HostDrift      `json:"hosts"`           // drifted hosts first
}

// Drifted reports whether any host or module differs from the catalog.
func (d *Drift) Drifted() bool {
	return d.Counts.Running < d.Total || len(d.MissingModules) > 0 || len(d.Elsewhere) > 0
}

// DriftState is the state of a process on one host.
type DriftState string

// Values of [DriftState].
const (
	DriftAgentMissing DriftState = "agent_missing" // no live agent: the state is unknown
	DriftDown         DriftState = "down"          // not running, or too few instances
	DriftUnsupervised DriftState = "unsupervised"  // not supervised, but should be
	DriftSpecDiffers  DriftState = "spec_differs"  // the registered or reported spec differs from the catalog
	DriftRunning      DriftState = "running"       // none of the above
	// DriftUnregistered is only in a [FleetProcess]: the process is reported, but not registered.
	DriftUnregistered DriftState = "unregistered"
)

// DriftCounts is the number of hosts in each [DriftState].
type DriftCounts struct {
	AgentMissing int `json:"agent_missing"`
	Down         int `json:"down"`
	Running      int `json:"running"`
	SpecDiffers  int `json:"spec_differs"`
	Unsupervised int `json:"unsupervised"`
}

// ModuleDrift is the drift of a process in one module.
type ModuleDrift struct {
	Set    string      `json:"set"`
	Module string      `json:"module"`
	Total  int         `json:"total"`
	Counts DriftCounts `json:"counts"`
}

// HostDrift is the drift of a process on one host.
type HostDrift struct {
	Host     procfleet.Host `json:"host"`
	AgentID  string         `json:"agent_id,omitempty"`
	Modules  []string       `json:"modules"`  // modules of the process that contain the host, as "set/module"
	State    DriftState     `json:"state"`    // first state that applies
	Remarks  []DriftState   `json:"remarks"`  // all states that apply, except [DriftRunning]
	Reported *Reported      `json:"reported"` // nil if no agent reported the process
}
