package boltstore

import (
	"context"
	"sync"
	"time"

	"github.com/procfleet/procfleet/taskstore"
)

// leases holds leases in memory. That suffices, because only one process can open the
// file, so all holders end together with the leases.
type leases struct {
	mu     sync.Mutex
	byName map[string]tenure
}

type tenure struct {
	holder string
	until  time.Time
}

// Lease acquires or renews a named lease and reports whether holder has it.
func (s *Store) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	// Read the clock under the lock: for a caller that waited with an earlier time, the
	// lease of another caller would seem longer than MaxLease.
	now := s.db.Now()
	// Ignore a lease longer than MaxLease: it was acquired before the clock stepped
	// back.
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

// Release releases a lease if holder has it.
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
