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
	mu   sync.Mutex
	held map[string]tenure
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
	// What lasts longer than any lease may was taken before the clock stepped back.
	has, ok := s.leases.held[name]
	if ok && has.holder != holder && now.Before(has.until) && has.until.Sub(now) <= taskstore.MaxLease {
		return false, nil
	}
	if s.leases.held == nil {
		s.leases.held = map[string]tenure{}
	}
	s.leases.held[name] = tenure{holder: holder, until: now.Add(min(ttl, taskstore.MaxLease))}
	return true, nil
}

// Release gives a lease back if holder has it.
func (s *Store) Release(ctx context.Context, name, holder string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	if s.leases.held[name].holder == holder {
		delete(s.leases.held, name)
	}
	return nil
}
