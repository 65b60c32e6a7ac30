package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/audit"
)

// policyHeader is the header that names a stored rollout policy.
const policyHeader = "Procfleet-Rollout"

func (e *exchange) setPolicies(ctx context.Context, q *dialect.PolicyChange, _ string) (catalog.RolloutPolicies, error) {
	record := audit.Record{Change: "set rollout policies", Business: q.Namespace}
	for i := range q.Policies.Windows {
		record.AddProcess(q.Policies.Windows[i].Name)
	}
	for _, name := range slices.Sorted(maps.Keys(q.Policies.Policies)) {
		record.AddProcess(name)
	}
	if err := e.auditChange(ctx, record); err != nil {
		return catalog.RolloutPolicies{}, err
	}
	ctx, cancel := e.detached(ctx)
	defer cancel()
	if err := e.api.store.SetPolicies(ctx, q.Namespace, q.Policies); err != nil {
		return catalog.RolloutPolicies{}, fmt.Errorf("store the rollout policies of %q: %w", q.Namespace, err)
	}
	e.api.submitter.policies.Forget(q.Namespace)
	return q.Policies, nil
}

func (e *exchange) showPolicies(ctx context.Context, q *dialect.PolicyQuery, _ string) (catalog.RolloutPolicies, error) {
	found, err := e.api.store.Policies(ctx, []string{q.Namespace})
	if err != nil {
		return catalog.RolloutPolicies{}, fmt.Errorf("read the rollout policies of %q: %w", q.Namespace, err)
	}
	return found[0], nil
}

// namePolicy sets the stored policy that the header of a request names.
func namePolicy(sub *procfleet.Submission, name string) error {
	if name != "" && sub.Rollout != nil {
		return &dialect.Error{Kind: dialect.InvalidField, Field: policyHeader, Problem: "names a policy, and the request has a rollout; give one or the other"}
	}
	sub.Policy = name
	return nil
}

// policed applies the stored rollout policies and the maintenance windows to a submission. It returns
// the windows that stop its rollout later.
func (s *submitter) policed(ctx context.Context, sub *procfleet.Submission, operations []procfleet.Operation) (map[string][]string, error) {
	if err := s.applyPolicy(ctx, sub, operations); err != nil {
		return nil, err
	}
	applyQueue(sub, operations)
	return s.heedWindows(ctx, sub, operations)
}

// applyPolicy sets the stored policy that a submission names, or the default for its number of
// hosts. A submission with a policy of its own remains as it is. Operations on one host do not
// read the store, unless they name a policy.
func (s *submitter) applyPolicy(ctx context.Context, sub *procfleet.Submission, operations []procfleet.Operation) error {
	if sub.Rollout != nil || sub.Policy == "" && !onSeveral(operations) {
		return nil
	}
	namespaces := policyNamespaces(sub, operations)
	found, err := s.policies.Policies(ctx, namespaces)
	if err != nil {
		return fmt.Errorf("read the rollout policies of %s: %w", strings.Join(namespaces, ", "), err)
	}
	hosts := -1 // not counted yet
	for i := range found {
		name := sub.Policy
		if name == "" && found[i].Default != "" {
			if hosts < 0 {
				hosts = len(operatedHosts(operations))
			}
			if hosts > max(found[i].RequiredAbove, 1) {
				name = found[i].Default
			}
		}
		if policy, exists := found[i].Policies[name]; exists {
			sub.Policy, sub.Rollout = name, &policy
			return nil
		}
	}
	if sub.Policy == "" {
		return nil
	}
	return unknownPolicy(sub.Policy, namespaces, found)
}

// applyQueue sets the queue of the policy, unless the submission has one or only queries. A submission
// with a queue and without a policy releases all hosts at once.
func applyQueue(sub *procfleet.Submission, operations []procfleet.Operation) {
	if sub.Queue == nil && sub.Rollout != nil && !slices.ContainsFunc(operations, queries) {
		sub.Queue = sub.Rollout.Queue
	}
	if sub.Queue != nil && sub.Rollout == nil {
		sub.Rollout = &procfleet.RolloutPolicy{Deadline: sub.Queue.For}
	}
}

func queries(o procfleet.Operation) bool { return !o.Action.Mutating() }

func unknownPolicy(name string, namespaces []string, found []catalog.RolloutPolicies) error {
	names := map[string]bool{}
	for i := range found {
		for known := range found[i].Policies {
			names[known] = true
		}
	}
	known := strings.Join(slices.Sorted(maps.Keys(names)), ", ")
	if known == "" {
		known = "there are none"
	}
	return &dialect.Error{Kind: dialect.InvalidField, Field: policyHeader, Problem: fmt.Sprintf(
		"%.80q is no rollout policy of %.200s; policies: %.500s", name, strings.Join(namespaces, ", "), known)}
}

// onSeveral reports whether operations change more than one target.
func onSeveral(operations []procfleet.Operation) bool {
	targets := 0
	for i := range operations {
		if operations[i].Action.Mutating() {
			targets += len(operations[i].Targets)
		}
	}
	return targets > 1
}

// policyNamespaces returns where the policies of a submission are: its business, then the
// namespaces of its processes.
func policyNamespaces(sub *procfleet.Submission, operations []procfleet.Operation) []string {
	var all []string
	add := func(name string) {
		if name != "" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	add(sub.Business)
	for i := range operations {
		add(operations[i].Process.Namespace)
	}
	return all
}
