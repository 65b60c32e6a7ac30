package rediscatalog

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// Each stored topology has a mark, a unique token. With it a caller verifies that its
// cached topology is current, even after a fail-over, when the same version number may
// belong to another topology. With it a repeated call also recognizes that an earlier
// attempt has written its topology.

// setTopologyScript replaces a topology.
//
// KEYS[1] topology
// ARGV[1] mark of the new topology
// ARGV[2] version to replace; -1 replaces any
// ARGV[3] packed topology
// Returns {1 if the new topology is stored, 0 if the stored version differs; the stored
// version}.
var setTopologyScript = redis.NewScript(`
local there = redis.call('HMGET', KEYS[1], 'mark', 'version')
local version = tonumber(there[2] or 0)
if there[1] == ARGV[1] then return {1, version} end
if ARGV[2] ~= '-1' and tonumber(ARGV[2]) ~= version then return {0, version} end
version = redis.call('HINCRBY', KEYS[1], 'version', 1)
redis.call('HSET', KEYS[1], 'mark', ARGV[1], 'packed', ARGV[3])
return {1, version}
`)

// topologyScript reads a topology unless the caller's mark is current.
//
// KEYS[1] topology
// ARGV[1] mark of the caller's cached topology, "" without one
// Returns {} if that mark is current, {""} if the business has no topology, else {mark,
// version, packed topology}.
var topologyScript = redis.NewScript(`
local mark = redis.call('HGET', KEYS[1], 'mark')
if not mark then return {''} end
if mark == ARGV[1] then return {} end
return redis.call('HMGET', KEYS[1], 'mark', 'version', 'packed')
`)

// SetTopology stores a topology in one round trip.
func (s *Catalog) SetTopology(ctx context.Context, b catalog.Business, t catalog.Topology) (int64, error) {
	if err := errors.Join(b.Validate(), t.Validate()); err != nil {
		return 0, fmt.Errorf("set topology: %w", err)
	}
	version, err := s.setTopology(ctx, b, &t)
	if err != nil {
		return 0, fmt.Errorf("set topology: %w", err)
	}
	return version, nil
}

func (s *Catalog) setTopology(ctx context.Context, b catalog.Business, t *catalog.Topology) (int64, error) {
	c := &redisconn.Call{
		Script: setTopologyScript, Keys: []string{s.keys.business(b).topology()},
		Args: []any{redisconn.NewToken(), t.Version, pack.Topology(t)},
	}
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return 0, err
	}
	answer, err := c.Cmd.Int64Slice()
	if err != nil || len(answer) != 2 {
		return 0, fmt.Errorf("%w: answer about a topology: %w", redisconn.ErrDamaged, err)
	}
	if answer[0] == 0 {
		return 0, &catalog.VersionError{Have: answer[1], Want: t.Version}
	}
	return answer[1], nil
}

// SetModuleHosts replaces the hosts of a module, in two round trips if there are no
// concurrent changes of the topology.
func (s *Catalog) SetModuleHosts(ctx context.Context, b catalog.Business, set, module string, hosts []procfleet.Host) (int64, error) {
	if err := b.Validate(); err != nil {
		return 0, fmt.Errorf("set hosts of a module: %w", err)
	}
	var version int64
	err := redisconn.Compete(ctx, func() (bool, error) {
		t, err := s.Topology(ctx, b)
		if err != nil {
			return false, err
		}
		if t, err = t.WithHosts(set, module, hosts); err != nil {
			return false, err
		}
		version, err = s.setTopology(ctx, b, t)
		if _, changed := errors.AsType[*catalog.VersionError](err); changed {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return 0, fmt.Errorf("set hosts of a module: %w", err)
	}
	return version, nil
}

// Topology returns the topology in one round trip. Redis returns the content only if
// this process has not cached it.
func (s *Catalog) Topology(ctx context.Context, b catalog.Business) (*catalog.Topology, error) {
	if b.Validate() != nil {
		return &catalog.Topology{}, ctx.Err()
	}
	known := s.cache(b).knownTopology()
	c := &redisconn.Call{Script: topologyScript, Keys: []string{s.keys.business(b).topology()}, Args: []any{known.mark}}
	if err := s.conn.Run(ctx, c); err != nil {
		return nil, fmt.Errorf("read topology: %w", err)
	}
	answer, err := c.Cmd.StringSlice()
	switch {
	case err == nil && len(answer) == 0:
		return known.Topology, nil
	case err == nil && len(answer) == 1:
		return &catalog.Topology{}, nil
	case err != nil || len(answer) != 3:
		return nil, fmt.Errorf("%w: answer about a topology: %w", redisconn.ErrDamaged, err)
	}
	return s.readTopology(b, answer)
}

func (s *Catalog) readTopology(b catalog.Business, answer []string) (*catalog.Topology, error) {
	version, err := strconv.ParseInt(answer[1], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: version of a topology: %w", redisconn.ErrDamaged, err)
	}
	t, err := pack.ReadTopology(version, answer[2])
	if err != nil {
		return nil, fmt.Errorf("read topology: %w", err)
	}
	s.cache(b).keepTopology(markedTopology{Topology: t, mark: answer[0]})
	return t, nil
}
