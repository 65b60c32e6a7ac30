package boltcatalog

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/internal/boltdb"
)

// topologyMemo caches a topology. The cached topology is current if its version is the
// version in the file, because versions are never reused.
type topologyMemo struct {
	atomic.Pointer[catalog.Topology]
}

func newTopologyMemo() *topologyMemo { return new(topologyMemo) }

// topologyRecord returns the version of a stored topology, 0 if there is none, and its
// packed form.
func (t *tx) topologyRecord(key []byte) (version int64, packed []byte, err error) {
	raw := t.Bucket(bucketTopologies).Get(key)
	if raw == nil {
		return 0, nil, nil
	}
	if len(raw) < 8 {
		return 0, nil, fmt.Errorf("%s %x: cut short", bucketTopologies, key)
	}
	return int64(binary.BigEndian.Uint64(raw)), raw[8:], nil
}

// topology returns the memo's topology if it is current, and else reads it. It does not
// change the memo, because the transaction may not be committed.
func (t *tx) topology(key []byte, memo *topologyMemo) (*catalog.Topology, error) {
	version, packed, err := t.topologyRecord(key)
	if err != nil || version == 0 {
		return new(catalog.Topology), err
	}
	if known := memo.Load(); known != nil && known.Version == version {
		return known, nil
	}
	return pack.ReadTopology(version, string(packed))
}

// putTopology stores a topology with the next version.
func (t *tx) putTopology(key []byte, version int64, packed []byte) error {
	return t.Bucket(bucketTopologies).Put(key, append(boltdb.Number8(uint64(version)), packed...))
}

// SetTopology replaces the whole topology and returns its new version.
func (s *Catalog) SetTopology(ctx context.Context, b catalog.Business, topology catalog.Topology) (int64, error) {
	if err := b.Validate(); err != nil {
		return 0, fmt.Errorf("set topology: %w", err)
	}
	if err := topology.Validate(); err != nil {
		return 0, fmt.Errorf("set topology: %w", err)
	}
	key, want, packed := businessKey(b), topology.Version, pack.Topology(&topology)
	return update(ctx, s, func(t *tx) (int64, error) {
		have, _, err := t.topologyRecord(key)
		if err != nil {
			return 0, err
		}
		if want != -1 && want != have {
			return 0, &catalog.VersionError{Have: have, Want: want}
		}
		return have + 1, t.putTopology(key, have+1, packed)
	})
}

// SetModuleHosts replaces the hosts of one module and returns the new version of the
// topology.
func (s *Catalog) SetModuleHosts(ctx context.Context, b catalog.Business, set, module string, hosts []procfleet.Host) (int64, error) {
	if err := b.Validate(); err != nil {
		return 0, fmt.Errorf("set hosts of a module: %w", err)
	}
	hosts = slices.Clone(hosts)
	patch := func(old *catalog.Topology) (next *catalog.Topology, packed []byte, err error) {
		if next, err = old.WithHosts(set, module, hosts); err != nil {
			return nil, nil, err
		}
		next.Version++
		return next, pack.Topology(next), nil
	}
	// Compute the new topology outside the transaction, which delays all other writers.
	// Compute it again inside the transaction only if another writer has changed the
	// topology.
	seen, err := s.Topology(ctx, b)
	if err != nil {
		return 0, err
	}
	next, packed, err := patch(seen)
	if err != nil {
		return 0, err
	}
	key, memo := businessKey(b), s.topologies.Use(b, s.db.Now())
	return update(ctx, s, func(t *tx) (int64, error) {
		old, err := t.topology(key, memo)
		if err != nil {
			return 0, err
		}
		next, packed := next, packed
		if old.Version != seen.Version {
			if next, packed, err = patch(old); err != nil {
				return 0, err
			}
		}
		t.OnCommit(func() { memo.Store(next) })
		return next.Version, t.putTopology(key, next.Version, packed)
	})
}

// Topology returns the topology of a business. The result is shared; do not change it.
func (s *Catalog) Topology(ctx context.Context, b catalog.Business) (*catalog.Topology, error) {
	if b.Validate() != nil {
		return new(catalog.Topology), ctx.Err()
	}
	memo := s.topologies.Use(b, s.db.Now())
	topology, err := view(ctx, s, func(t *tx) (*catalog.Topology, error) { return t.topology(businessKey(b), memo) })
	if err == nil && topology.Version > 0 {
		memo.Store(topology)
	}
	return topology, err
}
