package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// Business identifies the owner of processes and modules.
type Business struct {
	ID int64
	// Account is the supplier account; empty means "0".
	Account string
}

// path joins prefix, business id and below to a request path, with the account and
// the other parameters in the query.
func (b Business) path(prefix, below string, query url.Values) string {
	path := prefix + "/" + strconv.FormatInt(b.ID, 10) + below
	if query == nil {
		query = url.Values{}
	}
	if b.Account != "" {
		query.Set("account", b.Account)
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// CatalogQuery selects processes of a catalog; the zero query selects all.
type CatalogQuery struct {
	Name   string // part of the name, or the full name with Exact
	Exact  bool
	Module string // module to which the processes are bound
	// PageSize is the number of entries per request, 1 to 1000; zero means 1000.
	PageSize int
}

const catalogPath = "/v1/catalogue"

// Catalog yields the processes that a business defines, by name. It ends after
// the first error. If processes are created or deleted meanwhile, it may skip or
// repeat others.
func (c *Client) Catalog(ctx context.Context, b Business, q CatalogQuery) iter.Seq2[CatalogProcess, error] {
	return all(Query{PageSize: q.PageSize}, func(page Query) (Page[CatalogProcess], error) {
		var answer v1.CatalogPage
		values := nonEmpty(map[string]string{"name": q.Name, "module": q.Module, "start": page.Cursor, "limit": strconv.Itoa(page.size())})
		if q.Exact {
			values.Set("exact", "true")
		}
		err := c.do(ctx, get(b.path(catalogPath, "", values)), &answer)
		return Page[CatalogProcess]{answer.Processes, answer.Next}, err
	})
}

// LargestSave is the maximum number of processes per call of SaveCatalog.
const LargestSave = 1000

// SaveCatalog creates processes, or changes the existing processes of the same
// names; if one is rejected, it changes none. Missing attributes are unchanged, or
// get defaults in a new process. If a response was lost, the retry reports the
// changes of the earlier attempt as unchanged.
func (c *Client) SaveCatalog(ctx context.Context, b Business, processes []CatalogProcess) (CatalogSaved, error) {
	return c.saveCatalog(ctx, b, processes, nil)
}

// PlanCatalog returns the effect that [Client.SaveCatalog] would have, without changes.
func (c *Client) PlanCatalog(ctx context.Context, b Business, processes []CatalogProcess) (CatalogSaved, error) {
	return c.saveCatalog(ctx, b, processes, url.Values{"plan": {"true"}})
}

func (c *Client) saveCatalog(ctx context.Context, b Business, processes []CatalogProcess, query url.Values) (CatalogSaved, error) {
	var answer CatalogSaved
	path, body := b.path(catalogPath, "", query), v1.CatalogRequest{Processes: processes}
	err := c.sendFor(ctx, len(processes), http.MethodPut, path, body, &answer, func() int { return len(answer.Processes) })
	return answer, err
}

// DriftQuery selects the hosts of a drift report.
type DriftQuery struct {
	// Modules limits the report to hosts of these modules; empty: no limit.
	Modules []string
	// Limit is the maximum number of hosts listed; the counts include all hosts.
	Limit int
}

// Drift compares a process of the catalog with the last reports of agents; it sends
// no request to hosts.
func (c *Client) Drift(ctx context.Context, b Business, process int64, q DriftQuery) (Drift, error) {
	values := url.Values{"limit": {strconv.Itoa(q.Limit)}}
	if len(q.Modules) > 0 {
		values["module"] = q.Modules
	}
	var d Drift
	err := c.do(ctx, get(b.path("/v1/processes", "/"+strconv.FormatInt(process, 10)+"/status", values)), &d)
	return d, err
}

// DeleteFromCatalog deletes a process from the catalog, by its id. It reports false if there was
// none. The process keeps running on its hosts, and its registrations remain.
func (c *Client) DeleteFromCatalog(ctx context.Context, b Business, process int64) (deleted bool, err error) {
	var answer v1.CatalogDeleted
	err = c.send(ctx, http.MethodDelete, b.path(catalogPath, "/"+strconv.FormatInt(process, 10), nil), nil, &answer)
	return answer.Deleted, err
}

const topologyPath = "/v1/topology"

// Topology returns the topology of a business with its agents.
func (c *Client) Topology(ctx context.Context, b Business) (Topology, error) {
	var t Topology
	err := c.do(ctx, get(b.path(topologyPath, "", nil)), &t)
	return t, err
}

// BareTopology returns the topology of a business without agents, which is faster.
func (c *Client) BareTopology(ctx context.Context, b Business) (Topology, error) {
	var t Topology
	err := c.do(ctx, get(b.path(topologyPath, "", url.Values{"agents": {"false"}})), &t)
	return t, err
}

// TopologyText is an encoded topology, for example from a file.
type TopologyText struct {
	Text []byte
	Type string // application/json, application/yaml or text/csv
	// Version is the version to replace; nil means any. If the topology has
	// another version, the error is [ErrVersion]; this also happens if an earlier
	// attempt succeeded and its response was lost.
	Version *int64
	// AutoRegister applies if the text does not set it; nil: unchanged.
	AutoRegister *bool
}

// ReplaceTopology replaces the whole topology of a business and returns the new
// version.
func (c *Client) ReplaceTopology(ctx context.Context, b Business, t TopologyText) (int64, error) {
	var answer v1.TopologyVersion
	err := c.do(ctx, t.request(b, url.Values{}), &answer)
	return answer.Version, err
}

// PlanTopology returns the topology that [Client.ReplaceTopology] would store, and changes
// nothing.
func (c *Client) PlanTopology(ctx context.Context, b Business, t TopologyText) (planned Topology, err error) {
	return planned, c.do(ctx, t.request(b, url.Values{"plan": {"true"}}), &planned)
}

func (t *TopologyText) request(b Business, query url.Values) request {
	if t.AutoRegister != nil {
		query.Set("auto_register", strconv.FormatBool(*t.AutoRegister))
	}
	r := request{method: http.MethodPut, path: b.path(topologyPath, "", query), body: t.Text, contentType: t.Type}
	if t.Version != nil {
		r.ifMatch = strconv.Quote(strconv.FormatInt(*t.Version, 10))
	}
	return r
}

// SetTopology replaces the topology of version t.Version with t, after a caller has
// read t and modified it. See [TopologyText.Version].
func (c *Client) SetTopology(ctx context.Context, b Business, t Topology) (int64, error) {
	t.WithoutAgent, t.WithoutModule = nil, nil
	if t.Sets == nil {
		t.Sets = []TopologySet{}
	}
	return c.changeTopology(ctx, http.MethodPut, b, t)
}

// SetModuleHosts replaces the hosts of one module, and returns the new version of
// the topology.
func (c *Client) SetModuleHosts(ctx context.Context, b Business, set, module string, hosts []procfleet.Host) (int64, error) {
	if hosts == nil {
		hosts = []procfleet.Host{}
	}
	return c.changeTopology(ctx, http.MethodPatch, b, v1.TopologyEdit{Set: set, Module: module, Hosts: hosts})
}

// SetAutoRegister sets whether agents are notified of a process as soon as it is
// bound to a module of their host. It returns the new version of the topology.
func (c *Client) SetAutoRegister(ctx context.Context, b Business, register bool) (int64, error) {
	return c.changeTopology(ctx, http.MethodPatch, b, v1.TopologyEdit{AutoRegister: &register})
}

func (c *Client) changeTopology(ctx context.Context, method string, b Business, body any) (int64, error) {
	var answer v1.TopologyVersion
	err := c.send(ctx, method, b.path(topologyPath, "", nil), body, &answer)
	return answer.Version, err
}
