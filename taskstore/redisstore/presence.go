package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

// liveAreasScript lists the cloud areas that have live agents.
//
// KEYS[1] clouds
// ARGV[1] presence time-to-live of an announcement, in microseconds
// Returns the numbers of the cloud areas.
var liveAreasScript = redis.NewScript(redisconn.LuaNow + `
return redis.call('ZRANGEBYSCORE', KEYS[1], text(now() - 2 * ARGV[1]), '+inf')
`)

// Presences reads the presence of hosts in one round trip, with one HMGET for each
// cloud area.
func (s *Store) Presences(ctx context.Context, hosts []procfleet.Host) ([]taskstore.Presence, error) {
	if len(hosts) == 0 {
		return nil, nil
	}
	type area struct {
		positions []int
		addrs     []string
		answer    *redis.SliceCmd
	}
	areas := make(map[procfleet.CloudArea]*area)
	for i, h := range hosts {
		a := areas[h.Cloud]
		if a == nil {
			a = new(area)
			areas[h.Cloud] = a
		}
		a.positions = append(a.positions, i)
		a.addrs = append(a.addrs, h.Addr.String())
	}
	now, err := s.conn.ReadAt(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
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
			position := a.positions[i]
			if list[position], err = readPresence(hosts[position], v, now); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// Resolve returns the host to which each agent id is bound. For an id that is not bound
// it returns the host whose live agent announces the id, if there is exactly one.
func (s *Store) Resolve(ctx context.Context, agentIDs []string) ([]procfleet.Host, error) {
	if len(agentIDs) == 0 {
		return nil, nil
	}
	areas, err := s.readAgentAreas(ctx)
	if err != nil {
		return nil, fmt.Errorf("resolve agent ids: %w", err)
	}
	found, err := s.lookUpAgents(ctx, areas, agentIDs)
	if err != nil {
		return nil, fmt.Errorf("resolve agent ids: %w", err)
	}
	hosts := found.bound
	for i, claimants := range found.claimants {
		if hosts[i].IsZero() && len(claimants) == 1 {
			hosts[i] = claimants[0]
		}
	}
	return hosts, nil
}

// Claimants returns the hosts whose live agents announce each id. It queries every
// cloud area that has agents.
func (s *Store) Claimants(ctx context.Context, agentIDs []string) ([][]procfleet.Host, error) {
	if len(agentIDs) == 0 {
		return nil, nil
	}
	clouds, err := s.liveAreas(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.lookUpAgents(ctx, &agentAreas{live: clouds}, agentIDs)
	if err != nil {
		return nil, fmt.Errorf("read claimants of agent ids: %w", err)
	}
	return found.claimants, nil
}

// agentAreas holds the cloud areas to which agent ids may resolve, in ascending order.
type agentAreas struct {
	live  []procfleet.CloudArea // cloud areas with live agents
	bound []procfleet.CloudArea // cloud areas with bound ids
}

func (s *Store) readAgentAreas(ctx context.Context) (*agentAreas, error) {
	live := s.liveAreasCall()
	var bound *redis.StringSliceCmd
	err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		live.Send(ctx, pipe)
		bound = pipe.SMembers(ctx, s.keys.bound())
	})
	if err != nil {
		return nil, err
	}
	var areas agentAreas
	if areas.live, err = areasOf(live.Cmd.StringSlice()); err == nil {
		areas.bound, err = areasOf(bound.Result())
	}
	return &areas, err
}

// agentsFound holds the lookup results of agent ids, in request order.
type agentsFound struct {
	bound     []procfleet.Host
	claimants [][]procfleet.Host // hosts whose live agents announce the id
}

func (s *Store) lookUpAgents(ctx context.Context, areas *agentAreas, agentIDs []string) (*agentsFound, error) {
	bound, last, others := make([]*redis.SliceCmd, len(areas.bound)), make([]*redis.SliceCmd, len(areas.live)), make([]*redis.SliceCmd, len(areas.live))
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for i, cloud := range areas.bound {
			bound[i] = pipe.HMGet(ctx, s.keys.presence(cloud).bound(), agentIDs...)
		}
		for i, cloud := range areas.live {
			last[i] = pipe.HMGet(ctx, s.keys.presence(cloud).agents(), agentIDs...)
			others[i] = pipe.HMGet(ctx, s.keys.presence(cloud).claimants(), agentIDs...)
		}
	}); err != nil {
		return nil, err
	}
	found := &agentsFound{bound: make([]procfleet.Host, len(agentIDs))}
	for i, cloud := range areas.bound {
		err := eachHost(cloud, bound[i], agentIDs, func(position int, host procfleet.Host) {
			if agentIDs[position] != "" {
				found.bound[position] = host
			}
		})
		if err != nil {
			return nil, err
		}
	}
	var candidates candidates
	for i, cloud := range areas.live {
		for _, answer := range []*redis.SliceCmd{last[i], others[i]} {
			if err := eachHost(cloud, answer, agentIDs, candidates.add); err != nil {
				return nil, err
			}
		}
	}
	var err error
	found.claimants, err = s.confirm(ctx, agentIDs, &candidates)
	return found, err
}

// eachHost calls visit for the hosts in the reply to an HMGET of agent ids. Each value
// has the addresses of hosts in one cloud area, separated by spaces.
func eachHost(cloud procfleet.CloudArea, answer *redis.SliceCmd, agentIDs []string, visit func(position int, host procfleet.Host)) error {
	for position, v := range answer.Val() {
		text, ok := v.(string)
		if !ok {
			continue
		}
		for addr := range strings.FieldsSeq(text) {
			host, err := procfleet.NewHost(cloud, addr)
			if err != nil {
				return fmt.Errorf("%w: host of agent id %.80q: %w", redisconn.ErrDamaged, agentIDs[position], err)
			}
			visit(position, host)
		}
	}
	return nil
}

// candidates are hosts that may announce agent ids: hosts[i] may announce the id at
// positions[i].
type candidates struct {
	positions []int
	hosts     []procfleet.Host
}

func (c *candidates) add(position int, host procfleet.Host) {
	c.positions, c.hosts = append(c.positions, position), append(c.hosts, host)
}

// confirm returns, for each agent id, the candidates that have a live agent with that
// id. The index may be outdated, so it reads the entries of the hosts.
func (s *Store) confirm(ctx context.Context, agentIDs []string, c *candidates) ([][]procfleet.Host, error) {
	present, err := s.Presences(ctx, c.hosts)
	if err != nil {
		return nil, err
	}
	claimants := make([][]procfleet.Host, len(agentIDs))
	for i, p := range present {
		position := c.positions[i]
		if id := agentIDs[position]; id != "" && p.AgentID == id && !slices.Contains(claimants[position], p.Host) {
			claimants[position] = append(claimants[position], p.Host)
		}
	}
	for _, hosts := range claimants {
		slices.SortFunc(hosts, func(a, b procfleet.Host) int {
			return cmp.Or(cmp.Compare(a.Cloud, b.Cloud), strings.Compare(a.Addr.String(), b.Addr.String()))
		})
	}
	return claimants, nil
}

// liveAreas returns the cloud areas that have live agents, in ascending order.
func (s *Store) liveAreas(ctx context.Context) ([]procfleet.CloudArea, error) {
	c := s.liveAreasCall()
	if err := s.conn.Run(ctx, c); err != nil {
		return nil, fmt.Errorf("list cloud areas: %w", err)
	}
	return areasOf(c.Cmd.StringSlice())
}

func (s *Store) liveAreasCall() *redisconn.Call {
	return &redisconn.Call{Script: liveAreasScript, Keys: []string{s.keys.clouds()}, Args: []any{presenceTTL}}
}

// HostPage returns a page of live agents. It reads the ordered addresses of one cloud
// area after the other.
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

// hostsOf returns up to limit live hosts of one cloud area. begin is the start in the
// syntax of ZRANGEBYLEX.
func (s *Store) hostsOf(ctx context.Context, cloud procfleet.CloudArea, begin string, limit int) ([]taskstore.Presence, error) {
	var page []taskstore.Presence
	for len(page) < limit {
		var addrs *redis.StringSliceCmd
		if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
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
				return nil, fmt.Errorf("%w: address of a host: %w", redisconn.ErrDamaged, err)
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
