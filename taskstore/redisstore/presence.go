package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// liveAreasScript lists the cloud areas of which an agent was heard.
//
// KEYS[1] clouds
// ARGV[1] microseconds for which an announcement counts
// Returns their numbers.
var liveAreasScript = redis.NewScript(luaNow + `
return redis.call('ZRANGEBYSCORE', KEYS[1], text(now() - 2 * ARGV[1]), '+inf')
`)

// Presences is one round trip, with one HMGET for each cloud area.
func (s *Store) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	if len(hosts) == 0 {
		return nil, nil
	}
	type area struct {
		places []int
		addrs  []string
		answer *redis.SliceCmd
	}
	areas := make(map[procfleet.CloudArea]*area)
	for i, h := range hosts {
		a := areas[h.Cloud]
		if a == nil {
			a = new(area)
			areas[h.Cloud] = a
		}
		a.places = append(a.places, i)
		a.addrs = append(a.addrs, h.Addr.String())
	}
	now, err := s.readAt(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for cloud, a := range areas {
			a.answer = pipe.HMGet(ctx, s.keys.presence(cloud).hosts(), a.addrs...)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read presences: %w", err)
	}
	list := make([]taskstore.Presence, len(hosts))
	for _, a := range areas {
		for i, v := range a.answer.Val() {
			place := a.places[i]
			if list[place], err = readPresence(hosts[place], v, now); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// readAt is read together with the store's time.
func (s *Store) readAt(ctx context.Context, add addFunc) (time.Time, error) {
	if s.convoy != nil {
		return s.readWithTime(ctx, add)
	}
	c := s.nowCall()
	if err := s.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		c.send(ctx, pipe)
		add(ctx, pipe)
	}); err != nil {
		return time.Time{}, err
	}
	return c.moment()
}

// readWithTime is readAt for a single server, which needs no script to tell
// whose time is meant.
func (s *Store) readWithTime(ctx context.Context, add addFunc) (time.Time, error) {
	var now *redis.TimeCmd
	err := s.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		now = pipe.Time(ctx)
		add(ctx, pipe)
	})
	if err != nil {
		return time.Time{}, err
	}
	return now.Val().UTC(), nil
}

// Resolve looks for live agents that announced the ids, and where there are
// none for hosts that the ids are bound to.
func (s *Store) Resolve(ctx context.Context, agentIDs []string) ([]procfleet.Host, error) {
	if len(agentIDs) == 0 {
		return nil, nil
	}
	hosts, err := s.resolveLive(ctx, agentIDs)
	if err != nil {
		return nil, err
	}
	return hosts, s.resolveBound(ctx, agentIDs, hosts)
}

// resolveLive asks every cloud area for the ids, and then whether the hosts
// that they name are there: the index may be behind.
func (s *Store) resolveLive(ctx context.Context, agentIDs []string) ([]procfleet.Host, error) {
	clouds, err := s.liveAreas(ctx)
	if err != nil || len(clouds) == 0 {
		return make([]procfleet.Host, len(agentIDs)), err
	}
	answers := make([]*redis.SliceCmd, len(clouds))
	if err := s.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for i, cloud := range clouds {
			answers[i] = pipe.HMGet(ctx, s.keys.presence(cloud).agents(), agentIDs...)
		}
	}); err != nil {
		return nil, fmt.Errorf("resolve agent ids: %w", err)
	}
	var places []int
	var candidates []procfleet.Host
	for i, cloud := range clouds {
		for place, v := range answers[i].Val() {
			addr, ok := v.(string)
			if !ok {
				continue
			}
			host, err := procfleet.NewHost(cloud, addr)
			if err != nil {
				return nil, fmt.Errorf("%w: host of agent id %.80q: %w", errDamaged, agentIDs[place], err)
			}
			places, candidates = append(places, place), append(candidates, host)
		}
	}
	return s.confirm(ctx, agentIDs, places, candidates)
}

// confirm picks for each agent id the candidate that was heard of last under
// this id; candidates[i] is one for agentIDs[places[i]].
func (s *Store) confirm(ctx context.Context, agentIDs []string, places []int, candidates []procfleet.Host) ([]procfleet.Host, error) {
	present, err := s.Presences(ctx, candidates)
	if err != nil {
		return nil, err
	}
	hosts := make([]procfleet.Host, len(agentIDs))
	seen := make([]time.Time, len(agentIDs))
	for i, p := range present {
		place := places[i]
		if p.AgentID == agentIDs[place] && p.SeenAt.After(seen[place]) {
			hosts[place], seen[place] = p.Host, p.SeenAt
		}
	}
	return hosts, nil
}

// liveAreas lists the cloud areas that have agents, ascending.
func (s *Store) liveAreas(ctx context.Context) ([]procfleet.CloudArea, error) {
	c := &call{script: liveAreasScript, keys: []string{s.keys.clouds()}, args: []any{presenceTTL}}
	if err := s.run(ctx, c); err != nil {
		return nil, fmt.Errorf("list cloud areas: %w", err)
	}
	return areasOf(c.cmd.StringSlice())
}

// HostPage walks through the order of each cloud area.
func (s *Store) HostPage(ctx context.Context, after procfleet.Host, limit int) ([]taskstore.Presence, error) {
	clouds, err := s.liveAreas(ctx)
	if err != nil {
		return nil, err
	}
	var page []taskstore.Presence
	for _, cloud := range clouds {
		if cloud < after.Cloud {
			continue
		}
		begin := "-"
		if cloud == after.Cloud && !after.IsZero() {
			begin = "(" + after.Addr.String()
		}
		rest, err := s.hostsOf(ctx, cloud, begin, limit-len(page))
		if err != nil {
			return nil, err
		}
		if page = append(page, rest...); len(page) >= limit {
			break
		}
	}
	return page, nil
}

// hostsOf returns up to limit live hosts of one cloud area; begin is where, as
// ZRANGEBYLEX wants it.
func (s *Store) hostsOf(ctx context.Context, cloud procfleet.CloudArea, begin string, limit int) ([]taskstore.Presence, error) {
	var page []taskstore.Presence
	for len(page) < limit {
		var addrs *redis.StringSliceCmd
		if err := s.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
			addrs = pipe.ZRangeByLex(ctx, s.keys.presence(cloud).order(), &redis.ZRangeBy{Min: begin, Max: "+", Count: int64(limit)})
		}); err != nil {
			return nil, fmt.Errorf("list hosts: %w", err)
		}
		if len(addrs.Val()) == 0 {
			break
		}
		hosts := make([]procfleet.Host, len(addrs.Val()))
		for i, addr := range addrs.Val() {
			var err error
			if hosts[i], err = procfleet.NewHost(cloud, addr); err != nil {
				return nil, fmt.Errorf("%w: address of a host: %w", errDamaged, err)
			}
			begin = "(" + addr
		}
		present, err := s.Presences(ctx, hosts)
		if err != nil {
			return nil, err
		}
		for _, p := range present {
			if !p.Host.IsZero() && len(page) < limit {
				page = append(page, p)
			}
		}
	}
	return page, nil
}
