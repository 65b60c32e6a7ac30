package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/procfleet/procfleet"
)

// RolloutPolicies returns the stored rollout policies of a business or namespace, for example "2".
func (c *Client) RolloutPolicies(ctx context.Context, namespace string) (p RolloutPolicies, err error) {
	return p, c.do(ctx, get(policiesPath(namespace)), &p)
}

// SetRolloutPolicies replaces all rollout policies of a business or namespace, and returns them.
func (c *Client) SetRolloutPolicies(ctx context.Context, namespace string, p RolloutPolicies) (stored RolloutPolicies, err error) {
	if p.Policies == nil {
		p.Policies = []RolloutPolicy{}
	}
	if p.Windows == nil {
		p.Windows = []procfleet.MaintenanceWindow{}
	}
	return stored, c.send(ctx, http.MethodPut, policiesPath(namespace), p, &stored)
}

func policiesPath(namespace string) string { return "/v1/rollouts/" + url.PathEscape(namespace) }
