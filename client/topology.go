package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/procfleet/procfleet"
)

// Topology is what sets, modules and hosts a business has. Its JSON is the API's.
type Topology struct {
	// Version counts changes, from 1 on; 0 is a business that has no topology.
	Version int64 `json:"version"`
	// AutoRegister lets agents know of a process as soon as it is bound to a
	// module of theirs.
	AutoRegister bool          `json:"auto_register"`
	Sets         []TopologySet `json:"sets"`
	// WithoutAgent are hosts of modules on which no agent lives. WithoutModule
	// are hosts on which one lives and that are in no module, 1000 at most; nil
	// for applications that may not act for every business.
	WithoutAgent  []procfleet.Host `json:"without_agent"`
	WithoutModule []procfleet.Host `json:"without_module"`
}

// TopologySet is a group of modules.
type TopologySet struct {
	Name    string           `json:"name"`
	Modules []TopologyModule `json:"modules"`
}

// TopologyModule is a group of hosts that have the same processes.
type TopologyModule struct {
	Name    string           `json:"name"`
	Default int64            `json:"default"` // not 0: idle or out of order
	Hosts   []procfleet.Host `json:"hosts"`
}

const topologyPath = "/v1/topology"

// Topology returns the topology of a business, with what there is of agents in
// it.
func (c *Client) Topology(ctx context.Context, b Business) (Topology, error) {
	var t Topology
	err := c.do(ctx, get(b.path(topologyPath, "", nil)), &t)
	return t, err
}

// BareTopology returns it without what there is of agents, which is quicker.
func (c *Client) BareTopology(ctx context.Context, b Business) (Topology, error) {
	var t Topology
	err := c.do(ctx, get(b.path(topologyPath, "", url.Values{"agents": {"false"}})), &t)
	return t, err
}

// TopologyText is a topology as a file has it.
type TopologyText struct {
	Text []byte
	Type string // application/json, application/yaml or text/csv
	// Version is what it replaces, nil for whatever there is. Another one is an
	// [ErrVersion], also if an attempt before succeeded and its answer was lost.
	Version *int64
	// AutoRegister is for a text that does not say; nil leaves it as it is.
	AutoRegister *bool
}

// ReplaceTopology puts a topology in the place of the whole one that there is,
// and returns its version.
func (c *Client) ReplaceTopology(ctx context.Context, b Business, t TopologyText) (int64, error) {
	query := url.Values{}
	if t.AutoRegister != nil {
		query.Set("auto_register", strconv.FormatBool(*t.AutoRegister))
	}
	r := request{method: http.MethodPut, path: b.path(topologyPath, "", query), body: t.Text, contentType: t.Type}
	if t.Version != nil {
		r.ifMatch = strconv.Quote(strconv.FormatInt(*t.Version, 10))
	}
	return c.newVersion(ctx, r)
}

// SetTopology puts t in the place of the version that it has: what was read can
// be changed and put back. See [TopologyText.Version].
func (c *Client) SetTopology(ctx context.Context, b Business, t Topology) (int64, error) {
	t.WithoutAgent, t.WithoutModule = nil, nil
	if t.Sets == nil {
		t.Sets = []TopologySet{}
	}
	return c.changeTopology(ctx, http.MethodPut, b, t)
}

// SetModuleHosts replaces the hosts of one module, and returns the version of
// the topology.
func (c *Client) SetModuleHosts(ctx context.Context, b Business, set, module string, hosts []procfleet.Host) (int64, error) {
	if hosts == nil {
		hosts = []procfleet.Host{}
	}
	return c.changeTopology(ctx, http.MethodPatch, b, struct {
		Set    string           `json:"set"`
		Module string           `json:"module"`
		Hosts  []procfleet.Host `json:"hosts"`
	}{set, module, hosts})
}

// SetAutoRegister says whether agents are told of a process as soon as it is
// bound to a module of theirs, and returns the version of the topology.
func (c *Client) SetAutoRegister(ctx context.Context, b Business, register bool) (int64, error) {
	return c.changeTopology(ctx, http.MethodPatch, b, map[string]bool{"auto_register": register})
}

func (c *Client) changeTopology(ctx context.Context, method string, b Business, body any) (int64, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, fmt.Errorf("encode the request: %w", err)
	}
	return c.newVersion(ctx, request{method: method, path: b.path(topologyPath, "", nil), body: text})
}

func (c *Client) newVersion(ctx context.Context, r request) (int64, error) {
	var answer struct {
		Version int64 `json:"version"`
	}
	err := c.do(ctx, r, &answer)
	return answer.Version, err
}
