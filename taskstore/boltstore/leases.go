package boltstore

import (
	"context"
	"sync"
	"time"

	"github.com/procfleet/procfleet/taskstore"
)

// leases are kept in memory: only one process has the file open, and when it
// ends, so do all holders.
type leases struct {
	mu     sync.Mutex
	byName map[string]tenure
}

type tenure struct {
	holder string
	until  time.Time
}

// Lease takes or renews a named lease.
func (s *Store) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	now := s.now()
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	// A lease longer than MaxLease was taken before the clock stepped back.
	has, ok := s.leases.byName[name]
	if ok && has.holder != holder && now.Before(has.until) && has.until.Sub(now) <= taskstore.MaxLease {
		return false, nil
	}
	if s.leases.byName == nil {
		s.leases.byName = map[string]tenure{}
	}
	s.leases.byName[name] = tenure{holder: holder, until: now.Add(min(ttl, taskstore.MaxLease))}
	return true, nil
}

// Release ends a lease of holder.
func (s *Store) Release(ctx context.Context, name, holder string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	if s.leases.byName[name].holder == holder {
		delete(s.leases.byName, name)
	}
	return nil
}
