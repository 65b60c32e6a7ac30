package dialect

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// policyNamespace returns the namespace in the path.
func policyNamespace(r *Request) (string, error) {
	namespace := r.Wildcards["biz"]
	if !catalog.ValidName(namespace) {
		return "", invalid("biz", "is not a text of 1 to %d bytes", procfleet.MaxKey)
	}
	return namespace, nil
}

func decodePolicyChange(r *Request) (PolicyChange, error) {
	var params v1.RolloutPolicies
	if err := decodeNativeBody(r, &params); err != nil {
		return PolicyChange{}, err
	}
	namespace, err := policyNamespace(r)
	if err != nil {
		return PolicyChange{}, err
	}
	q := PolicyChange{Namespace: namespace, Policies: catalog.RolloutPolicies{
		Policies: make(map[string]procfleet.RolloutPolicy, len(params.Policies)), Default: params.Default, RequiredAbove: params.RequiredAbove, Windows: params.Windows,
	}}
	for i, p := range params.Policies {
		if _, twice := q.Policies.Policies[p.Name]; twice {
			err = errors.Join(err, invalid(fmt.Sprintf("policies[%d].name", i), "%.80q is there twice", p.Name))
		}
		q.Policies.Policies[p.Name] = p.Rollout
	}
	return q, errors.Join(err, catalog.CheckPolicies(namespace, &q.Policies))
}

func decodePolicyQuery(r *Request) (PolicyQuery, error) {
	namespace, err := policyNamespace(r)
	return PolicyQuery{Namespace: namespace}, err
}

func nativePolicies[Q any](_ *Q, p catalog.RolloutPolicies, _ string) Reply {
	shown := v1.RolloutPolicies{Policies: []v1.RolloutPolicy{}, Default: p.Default, RequiredAbove: p.RequiredAbove, Windows: p.Windows}
	if shown.Windows == nil {
		shown.Windows = []procfleet.MaintenanceWindow{}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Policies)) {
		shown.Policies = append(shown.Policies, v1.RolloutPolicy{Name: name, Rollout: p.Policies[name]})
	}
	return ok(shown)
}
