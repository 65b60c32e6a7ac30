package dialect

import "github.com/procfleet/procfleet/catalog"

// SetPolicies is the endpoint that replaces the rollout policies of a namespace.
type SetPolicies = Codec[PolicyChange, catalog.RolloutPolicies]

// PolicyChange is a request to replace the rollout policies of a namespace.
type PolicyChange struct {
	Namespace string                  `json:"namespace"`
	Policies  catalog.RolloutPolicies `json:"policies"`
}

// InBusiness returns the namespace: rights to its policies are those of the business.
func (q *PolicyChange) InBusiness() string { return q.Namespace }

// ShowPolicies is the endpoint that returns the rollout policies of a namespace.
type ShowPolicies = Codec[PolicyQuery, catalog.RolloutPolicies]

// PolicyQuery requests the rollout policies of a namespace.
type PolicyQuery struct {
	Namespace string `json:"namespace"`
}

// InBusiness returns the namespace.
func (q *PolicyQuery) InBusiness() string { return q.Namespace }
