package redisstore

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// groupsScript stores the groups of hosts, one after the other.
//
// KEYS[1] groups of a namespace
// ARGV[1..] for each: host, its packed groups or "" to take them away
// Returns 1.
var groupsScript = redis.NewScript(`
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
return 1
`)

// SetGroups is one round trip with one script call for at most 500 hosts of a
// namespace.
func (s *Store) SetGroups(ctx context.Context, gs []catalog.HostGroups) error {
	type part struct {
		*call
		bytes int
	}
	var calls []*call
	open := make(map[string]*part)
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
		p := open[g.Namespace]
		if p == nil || len(p.args) >= 2*scriptItems || p.bytes+len(packed) > scriptBytes {
			p = &part{call: &call{script: groupsScript, keys: []string{s.keys.namespace(g.Namespace).groups()}}}
			open[g.Namespace] = p
			calls = append(calls, p.call)
		}
		p.args, p.bytes = append(p.args, hostMember(g.Host), packed), p.bytes+len(packed)
	}
	if len(calls) == 0 {
		return nil
	}
	if err := s.runDurably(ctx, calls...); err != nil {
		return fmt.Errorf("set groups: %w", err)
	}
	return nil
}

// Groups is one round trip.
func (s *Store) Groups(ctx context.Context, namespace string, hosts []procfleet.Host) ([]catalog.HostGroups, error) {
	if len(hosts) == 0 {
		return nil, nil
	}
	fields := make([]string, len(hosts))
	for i, h := range hosts {
		fields[i] = hostMember(h)
	}
	var answer *redis.SliceCmd
	if err := s.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		answer = pipe.HMGet(ctx, s.keys.namespace(namespace).groups(), fields...)
	}); err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	gs := make([]catalog.HostGroups, len(hosts))
	for i, v := range answer.Val() {
		packed, ok := v.(string)
		if !ok {
			gs[i] = catalog.HostGroups{Host: hosts[i], Namespace: namespace}
			continue
		}
		var err error
		if gs[i], err = pack.ReadGroups(hosts[i], namespace, []byte(packed)); err != nil {
			return nil, fmt.Errorf("%w: groups of host %s: %w", errDamaged, hosts[i], err)
		}
	}
	return gs, nil
}
