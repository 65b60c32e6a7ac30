package boltcatalog

import (
	"context"
	"fmt"

	"github.com/procfleet/procfleet/catalog"
)

// SetPolicies replaces the rollout policies of a namespace.
func (s *Catalog) SetPolicies(ctx context.Context, namespace string, p catalog.RolloutPolicies) error {
	if err := catalog.CheckPolicies(namespace, &p); err != nil {
		return fmt.Errorf("set policies: %w", err)
	}
	return change(ctx, s, func(t *tx) error {
		if p.Empty() {
			return t.Bucket(bucketPolicies).Delete([]byte(namespace))
		}
		return t.Put(bucketPolicies, []byte(namespace), p)
	})
}

// Policies returns the rollout policies of each namespace, in order.
func (s *Catalog) Policies(ctx context.Context, namespaces []string) ([]catalog.RolloutPolicies, error) {
	return view(ctx, s, func(t *tx) ([]catalog.RolloutPolicies, error) {
		found := make([]catalog.RolloutPolicies, len(namespaces))
		for i, namespace := range namespaces {
			if _, err := t.Get(bucketPolicies, []byte(namespace), &found[i]); err != nil {
				return nil, err
			}
		}
		return found, nil
	})
}
