package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/procfleet/procfleet"
)

// Limits of rollout policies and maintenance windows.
const (
	MaxPolicies   = 100 // maximum number of policies of a namespace
	MaxWindows    = 100 // maximum number of maintenance windows of a namespace
	MaxPolicyName = 64  // maximum length of a name in bytes
)

// RolloutPolicies are the named rollout policies and the maintenance windows of one namespace. The
// zero value has none.
type RolloutPolicies struct {
	Policies map[string]procfleet.RolloutPolicy `json:"policies,omitempty"`
	// Default names the policy of operations that have none; "" = no default.
	Default string `json:"default,omitempty"`
	// RequiredAbove is the number of hosts up to which Default does not apply. It never applies to
	// one host.
	RequiredAbove int `json:"required_above,omitempty"`
	// Windows apply to operations on processes of the namespace, and to those of its business.
	Windows []procfleet.MaintenanceWindow `json:"windows,omitempty"`
}

// Empty reports whether there are neither policies nor windows.
func (p *RolloutPolicies) Empty() bool { return len(p.Policies) == 0 && len(p.Windows) == 0 }

// Validate returns a [procfleet.FieldError] for each invalid field.
func (p *RolloutPolicies) Validate() error {
	var errs []error
	if len(p.Policies) > MaxPolicies {
		errs = append(errs, &procfleet.FieldError{Field: "policies", Problem: fmt.Sprintf("has %d policies, at most %d are allowed", len(p.Policies), MaxPolicies)})
	}
	for _, name := range slices.Sorted(maps.Keys(p.Policies)) {
		if !validPolicyName(name) {
			errs = append(errs, &procfleet.FieldError{Field: "policies", Problem: fmt.Sprintf(
				"%.80q is no name of a policy: it has 1 to %d letters, digits, dots, hyphens and underscores", name, MaxPolicyName)})
			continue
		}
		policy := p.Policies[name]
		errs = append(errs, procfleet.In("policies."+name, policy.Validate()))
	}
	if _, exists := p.Policies[p.Default]; p.Default != "" && !exists {
		errs = append(errs, &procfleet.FieldError{Field: "default", Problem: fmt.Sprintf("%.80q is not in policies", p.Default)})
	}
	if p.RequiredAbove < 0 {
		errs = append(errs, &procfleet.FieldError{Field: "required_above", Problem: "is negative"})
	}
	if p.RequiredAbove > 0 && p.Default == "" {
		errs = append(errs, &procfleet.FieldError{Field: "required_above", Problem: "needs a default"})
	}
	return errors.Join(append(errs, validWindows(p.Windows))...)
}

// CheckPolicies returns an error for an invalid namespace or invalid policies. Only the namespace of
// a [Business] has sets and modules.
func CheckPolicies(namespace string, p *RolloutPolicies) error {
	errs := []error{validName("namespace", namespace), p.Validate()}
	if _, err := ParseBusiness(namespace); err != nil {
		for _, name := range slices.Sorted(maps.Keys(p.Policies)) {
			policy := p.Policies[name]
			errs = append(errs, ungrouped("policies."+name+".order.by", policy.Order.By), ungrouped("policies."+name+".zones.by", policy.Zones.By))
		}
		for i := range p.Windows {
			errs = append(errs, ungrouped(fmt.Sprintf("windows[%d].by", i), p.Windows[i].By))
		}
	}
	return errors.Join(errs...)
}

func ungrouped(field string, by procfleet.GroupBy) error {
	if by != procfleet.GroupBySet && by != procfleet.GroupByModule {
		return nil
	}
	return &procfleet.FieldError{Field: field, Problem: fmt.Sprintf("is %s, which needs the policies of a business, a number such as 2", by)}
}

// validPolicyName reports whether a name is also valid in a header and a field of an error.
func validPolicyName(name string) bool {
	for _, c := range []byte(name) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return name != "" && len(name) <= MaxPolicyName
}

// Policies stores rollout policies by namespace.
type Policies interface {
	// SetPolicies replaces the policies of a namespace.
	SetPolicies(ctx context.Context, namespace string, p RolloutPolicies) error
	// Policies returns the policies of each namespace, in order.
	Policies(ctx context.Context, namespaces []string) ([]RolloutPolicies, error)
}
