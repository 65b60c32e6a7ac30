package client

import (
	"context"
	"net/url"
	"strconv"

	"github.com/procfleet/procfleet"
)

// Drift is how a process of the catalogue stands on the hosts of the modules
// that it is bound to. Its JSON is the API's.
type Drift struct {
	ID int64 `json:"id"`
	// Namespace and Name are what the process is on hosts.
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Total     int           `json:"total"` // of hosts
	Counts    DriftCounts   `json:"counts"`
	Modules   []ModuleDrift `json:"modules"`
	// MissingModules are those that the process is bound to and the topology
	// does not have.
	MissingModules []string `json:"missing_modules"`
	// Elsewhere are hosts in none of its modules where it is registered.
	Elsewhere []procfleet.Host `json:"elsewhere"`
	// Hosts are those that drifted before those on which it runs; see
	// [DriftQuery.Limit].
	Hosts []HostDrift `json:"hosts"`
}

// Drifted reports whether something is not as the catalogue has it.
func (d *Drift) Drifted() bool {
	return d.Counts.Running < d.Total || len(d.MissingModules) > 0 || len(d.Elsewhere) > 0
}

// DriftCounts are how many hosts are in each state.
type DriftCounts struct {
	AgentMissing int `json:"agent_missing"` // no live agent
	Down         int `json:"down"`          // it does not run, or too few instances
	Unsupervised int `json:"unsupervised"`  // to be kept alive, and is not
	SpecDiffers  int `json:"spec_differs"`  // registered as something else
	Running      int `json:"running"`       // none of the above
}

// ModuleDrift is how a process stands in one module.
type ModuleDrift struct {
	Set    string      `json:"set"`
	Module string      `json:"module"`
	Total  int         `json:"total"`
	Counts DriftCounts `json:"counts"`
}

// HostDrift is how a process stands on one host.
type HostDrift struct {
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id,omitempty"`
	Modules []string       `json:"modules"` // as <set>/<module>
	// State is named as in [DriftCounts]: the first that applies. Remarks are
	// all but running.
	State    string    `json:"state"`
	Remarks  []string  `json:"remarks"`
	Reported *Reported `json:"reported"` // nil if no agent reported it
}

// DriftQuery says of which hosts is to be told.
type DriftQuery struct {
	// Modules leaves out hosts in none of these modules; none is all.
	Modules []string
	// Limit is how many hosts are listed; all are counted.
	Limit int
}

// Drift compares a process of the catalogue with what agents reported of it
// last; no host is asked.
func (c *Client) Drift(ctx context.Context, b Business, process int64, q DriftQuery) (Drift, error) {
	values := url.Values{"limit": {strconv.Itoa(q.Limit)}}
	if len(q.Modules) > 0 {
		values["module"] = q.Modules
	}
	var d Drift
	err := c.do(ctx, get(b.path("/v1/processes", "/"+strconv.FormatInt(process, 10)+"/status", values)), &d)
	return d, err
}
