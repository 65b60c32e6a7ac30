// Package policycache keeps rollout policies and maintenance windows in memory for a short time.
package policycache

import (
	"context"
	"sync"
	"time"

	"github.com/procfleet/procfleet/catalog"
)

const (
	// MaxAge is the time after which policies are read again: so long, and no longer, a change is
	// unknown to other processes.
	MaxAge = 2 * time.Second
	// maxKept bounds the namespaces in memory. When it is reached, all are forgotten.
	maxKept = 1 << 12
)

// Store reads policies.
type Store interface {
	Policies(ctx context.Context, namespaces []string) ([]catalog.RolloutPolicies, error)
}

// Cache reads policies from a store. It is safe for concurrent use.
type Cache struct {
	store Store

	mu   sync.Mutex
	kept map[string]entry
}

type entry struct {
	policies catalog.RolloutPolicies
	read     time.Time // when the read began
}

// New returns an empty cache.
func New(store Store) *Cache { return &Cache{store: store, kept: map[string]entry{}} }

// Policies returns the policies of each namespace, in order, as they were at most [MaxAge] ago. It
// reads the store if it has to. The caller must not change the policies.
func (c *Cache) Policies(ctx context.Context, namespaces []string) ([]catalog.RolloutPolicies, error) {
	now := time.Now()
	found := make([]catalog.RolloutPolicies, len(namespaces))
	var missing []string
	var at []int
	c.mu.Lock()
	for i, namespace := range namespaces {
		e, exists := c.kept[namespace]
		if exists && now.Sub(e.read) < MaxAge {
			found[i] = e.policies
			continue
		}
		missing, at = append(missing, namespace), append(at, i)
	}
	c.mu.Unlock()
	if len(missing) == 0 {
		return found, nil
	}
	read, err := c.store.Policies(ctx, missing)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept)+len(missing) > maxKept {
		clear(c.kept)
	}
	for i, namespace := range missing {
		found[at[i]] = read[i]
		c.kept[namespace] = entry{read[i], now}
	}
	return found, nil
}

// Forget lets the next call read the policies of a namespace.
func (c *Cache) Forget(namespace string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.kept, namespace)
}
