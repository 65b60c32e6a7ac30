package rediscatalog

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// SetPolicies replaces the rollout policies of a namespace.
func (s *Catalog) SetPolicies(ctx context.Context, namespace string, p catalog.RolloutPolicies) error {
	if err := catalog.CheckPolicies(namespace, &p); err != nil {
		return fmt.Errorf("set policies: %w", err)
	}
	packed := []byte{}
	if !p.Empty() {
		var err error
		if packed, err = json.Marshal(p); err != nil {
			return fmt.Errorf("set policies: %w", err)
		}
	}
	c := &redisconn.Call{Script: fieldsScript, Keys: []string{s.keys.policies()}, Args: []any{namespace, packed}}
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return fmt.Errorf("set policies: %w", err)
	}
	return nil
}

// Policies reads policies in one call.
func (s *Catalog) Policies(ctx context.Context, namespaces []string) ([]catalog.RolloutPolicies, error) {
	if len(namespaces) == 0 {
		return nil, nil
	}
	var answer *redis.SliceCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		answer = pipe.HMGet(ctx, s.keys.policies(), namespaces...)
	}); err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	found := make([]catalog.RolloutPolicies, len(namespaces))
	for i, value := range answer.Val() {
		if text, exists := value.(string); exists {
			if err := json.Unmarshal([]byte(text), &found[i]); err != nil {
				return nil, fmt.Errorf("%w: policies of namespace %q: %w", redisconn.ErrDamaged, namespaces[i], err)
			}
		}
	}
	return found, nil
}
