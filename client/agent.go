package client

import (
	"context"
	"net/http"

	"github.com/procfleet/procfleet"
)

// HostAgent is the live agent of one host.
type HostAgent struct {
	// Host is zero if the caller named an agent that nobody had announced.
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id,omitempty"` // as the caller named it
	Agent   *Agent         `json:"agent"`              // nil if there is none
}

// AgentsOn returns the live agent of each of the hosts, then of each agent id.
func (c *Client) AgentsOn(ctx context.Context, on Targets) ([]HostAgent, error) {
	return ask(on, func(on Targets) ([]HostAgent, error) {
		var answer struct {
			Agents []HostAgent `json:"agents"`
		}
		const path = "/v1/agents/query"
		if err := c.send(ctx, http.MethodPost, path, on, &answer); err != nil {
			return nil, err
		}
		return answer.Agents, complete(path, len(answer.Agents), on.count())
	})
}

// Binding says under which agent id a host will be named from now on.
type Binding struct {
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id"`
	// Bound is the server's answer: whether the id leads to the host.
	Bound bool `json:"bound,omitempty"`
}

// BindAgents tells the server bindings and returns them with what came of each.
// The business is that of [Targets].
func (c *Client) BindAgents(ctx context.Context, bindings []Binding, business string) ([]Binding, error) {
	var answer struct {
		Results []Binding `json:"results"`
	}
	const path = "/v1/agents/bindings"
	err := c.send(ctx, http.MethodPost, path, struct {
		Bindings []Binding `json:"bindings"`
		Business string    `json:"business,omitempty"`
	}{bindings, business}, &answer)
	if err != nil {
		return nil, err
	}
	return answer.Results, complete(path, len(answer.Results), len(bindings))
}
