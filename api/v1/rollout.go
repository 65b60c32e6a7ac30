package v1

import "github.com/procfleet/procfleet"

// RolloutPolicies are the stored rollout policies and maintenance windows of a namespace.
type RolloutPolicies struct {
	Policies []RolloutPolicy `json:"policies"` // sorted by name in responses
	// Default names the policy of tasks without one on more than RequiredAbove hosts, whatever API
	// they come from; "" = no default. It never applies to one host.
	Default       string `json:"default"`
	RequiredAbove int    `json:"required_above"`
	// Windows apply to operations on processes of the namespace, and to those of its business.
	Windows []procfleet.MaintenanceWindow `json:"windows"`
}

// RolloutPolicy is a stored policy. The header Procfleet-Rollout of a request to create a task
// selects it.
type RolloutPolicy struct {
	Name    string                  `json:"name"` // up to 64 letters, digits, dots, hyphens and underscores
	Rollout procfleet.RolloutPolicy `json:"rollout"`
}
