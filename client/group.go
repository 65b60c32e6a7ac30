package client

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/procfleet/procfleet"
)

// Group is a part of a host's resources that processes of one namespace share.
type Group struct {
	ID string `json:"id"`
	// Limits are percent of the host; 0 is no limit.
	CPULimit    float64 `json:"cpu_limit"`
	MemoryLimit float64 `json:"memory_limit"`
	// Of a group above its limit the process goes that uses most. With these,
	// processes that have a large limit themselves are spared longer.
	CPUByLimit    bool `json:"cpu_by_limit"`
	MemoryByLimit bool `json:"memory_by_limit"`
}

// Grouping is the groups of one namespace.
type Grouping struct {
	Namespace string `json:"namespace"`
	// Name and Labels are the caller's own notes; values are JSON scalars.
	Name   string                     `json:"name,omitempty"`
	Labels map[string]json.RawMessage `json:"labels,omitempty"`
	Groups []Group                    `json:"groups"`
}

// HostGroups are the groups of one namespace on one host; without any, Groups
// is empty.
type HostGroups struct {
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id,omitempty"`
	Grouping
}

// SetGroups gives hosts the groups of a namespace, in the place of those that
// it has there; none at all takes them away.
func (c *Client) SetGroups(ctx context.Context, g Grouping, on Targets) ([]Outcome, error) {
	if g.Groups == nil {
		g.Groups = []Group{} // what is left out is refused
	}
	return c.change(ctx, http.MethodPut, "/v1/groups", on, struct {
		Grouping
		Targets
	}{g, on})
}

// GroupsOn returns the groups of a namespace on each of the hosts, then of the
// agents.
func (c *Client) GroupsOn(ctx context.Context, namespace string, on Targets) ([]HostGroups, error) {
	return ask(on, func(on Targets) ([]HostGroups, error) {
		var answer struct {
			Hosts []HostGroups `json:"hosts"`
		}
		const path = "/v1/groups/query"
		err := c.send(ctx, http.MethodPost, path, struct {
			Namespace string `json:"namespace"`
			Targets
		}{namespace, on}, &answer)
		if err != nil {
			return nil, err
		}
		return answer.Hosts, complete(path, len(answer.Hosts), on.count())
	})
}
