package rediscatalog

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// fieldsScript sets and removes fields of a hash.
//
// KEYS[1] hash
// ARGV[1..] for each: field, its value or "" to remove it
// Returns 1.
var fieldsScript = redis.NewScript(`
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
return 1
`)

// SetGroups stores groups in one round trip, with one script call for each host.
func (s *Catalog) SetGroups(ctx context.Context, gs []catalog.HostGroups) error {
	var calls []*redisconn.Call
	open := make(map[procfleet.Host]*redisconn.Call)
	for i := range gs {
		g := &gs[i]
		if err := g.Validate(); err != nil {
			return fmt.Errorf("set groups: %w", err)
		}
		packed := []byte{}
		if len(g.Groups) > 0 {
			var err error
			if packed, err = pack.Groups(g); err != nil {
				return fmt.Errorf("set groups: %w", err)
			}
		}
		c := open[g.Host]
		if c == nil || len(c.Args) >= 2*redisconn.ScriptItems {
			c = &redisconn.Call{Script: fieldsScript, Keys: []string{s.keys.groups(g.Host)}}
			open[g.Host] = c
			calls = append(calls, c)
		}
		c.Args = append(c.Args, g.Namespace, packed)
	}
	if len(calls) == 0 {
		return nil
	}
	if err := s.conn.RunDurably(ctx, calls...); err != nil {
		return fmt.Errorf("set groups: %w", err)
	}
	return nil
}

// Groups reads groups in one round trip.
func (s *Catalog) Groups(ctx context.Context, namespace string, hosts []procfleet.Host) ([]catalog.HostGroups, error) {
	if len(hosts) == 0 {
		return nil, nil
	}
	var answers []*redis.StringCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		answers = answers[:0]
		for _, h := range hosts {
			answers = append(answers, pipe.HGet(ctx, s.keys.groups(h), namespace))
		}
	}); err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	gs := make([]catalog.HostGroups, len(hosts))
	for i, answer := range answers {
		if answer.Val() == "" {
			gs[i] = catalog.HostGroups{Host: hosts[i], Namespace: namespace}
			continue
		}
		var err error
		if gs[i], err = readGroups(hosts[i], namespace, answer.Val()); err != nil {
			return nil, err
		}
	}
	return gs, nil
}

// GroupsOf reads the groups of hosts in one round trip.
func (s *Catalog) GroupsOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.HostGroups, error) {
	if len(hosts) == 0 {
		return nil, nil
	}
	var answers []*redis.MapStringStringCmd
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		answers = answers[:0]
		for _, h := range hosts {
			answers = append(answers, pipe.HGetAll(ctx, s.keys.groups(h)))
		}
	}); err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	all := make([][]catalog.HostGroups, len(hosts))
	for i, answer := range answers {
		byNamespace := answer.Val()
		for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
			g, err := readGroups(hosts[i], namespace, byNamespace[namespace])
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], g)
		}
	}
	return all, nil
}

func readGroups(h procfleet.Host, namespace, packed string) (catalog.HostGroups, error) {
	g, err := pack.ReadGroups(h, namespace, []byte(packed))
	if err != nil {
		return catalog.HostGroups{}, fmt.Errorf("%w: groups of host %s: %w", redisconn.ErrDamaged, h, err)
	}
	return g, nil
}
