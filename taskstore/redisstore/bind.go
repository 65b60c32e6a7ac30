package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

// boundAreasScript records the cloud areas of agent ids before the ids are bound.
//
// KEYS[1] bound
// ARGV[1..] cloud areas
// Returns all recorded areas.
var boundAreasScript = redis.NewScript(`
redis.call('SADD', KEYS[1], unpack(ARGV))
return redis.call('SMEMBERS', KEYS[1])
`)

// bindScript binds agent ids to hosts of one cloud area. It removes the bindings of ids
// that are bound to hosts of other cloud areas.
//
// KEYS[1] bound
// KEYS[2] names
// ARGV[1..] for each: agent id, address or "" to remove it
// Returns 1.
var bindScript = redis.NewScript(`
local function without(id, addr)
  local names, kept = redis.call('HGET', KEYS[2], addr), {}
  for _, name in ipairs(names and cjson.decode(names) or {}) do
    if name ~= id then kept[#kept + 1] = name end
  end
  return kept
end
local function keep(addr, names)
  if #names == 0 then
    redis.call('HDEL', KEYS[2], addr)
  else
    redis.call('HSET', KEYS[2], addr, cjson.encode(names))
  end
end
for i = 1, #ARGV, 2 do
  local id, addr = ARGV[i], ARGV[i + 1]
  local old = redis.call('HGET', KEYS[1], id)
  if old and old ~= addr then
    keep(old, without(id, old))
    redis.call('HDEL', KEYS[1], id)
  end
  if addr ~= '' then
    local names = without(id, addr)
    names[#names + 1] = id
    while #names > ` + strconv.Itoa(taskstore.MaxHostBound) + ` do redis.call('HDEL', KEYS[1], table.remove(names, 1)) end
    keep(addr, names)
    redis.call('HSET', KEYS[1], id, addr)
  end
end
return 1
`)

// Bind binds agent ids to hosts in two round trips. The second has one script call for
// at most 500 ids of a cloud area.
func (s *Store) Bind(ctx context.Context, bindings []taskstore.AgentBinding) error {
	if len(bindings) == 0 {
		return nil
	}
	areas := &redisconn.Call{Script: boundAreasScript, Keys: []string{s.keys.bound()}}
	for i, b := range bindings {
		if err := b.Validate(); err != nil {
			return fmt.Errorf("bind agent ids: binding %d: %w", i, err)
		}
		if !slices.Contains(areas.Args, any(int64(b.Host.Cloud))) {
			areas.Args = append(areas.Args, int64(b.Host.Cloud))
		}
	}
	if err := s.conn.RunDurably(ctx, areas); err != nil {
		return fmt.Errorf("bind agent ids: %w", err)
	}
	clouds, err := areasOf(areas.Cmd.StringSlice())
	if err != nil {
		return fmt.Errorf("bind agent ids: %w", err)
	}
	var calls []*redisconn.Call
	for some := range slices.Chunk(bindings, redisconn.ScriptItems) {
		for _, cloud := range clouds {
			calls = append(calls, s.bindCall(cloud, some))
		}
	}
	if err := s.conn.RunDurably(ctx, calls...); err != nil {
		return fmt.Errorf("bind agent ids: %w", err)
	}
	return nil
}

func (s *Store) bindCall(cloud procfleet.CloudArea, bindings []taskstore.AgentBinding) *redisconn.Call {
	keys := s.keys.presence(cloud)
	c := &redisconn.Call{Script: bindScript, Keys: []string{keys.bound(), keys.names()}}
	for _, b := range bindings {
		addr := ""
		if b.Host.Cloud == cloud {
			addr = b.Host.Addr.String()
		}
		c.Args = append(c.Args, b.AgentID, addr)
	}
	return c
}

// areasOf parses cloud areas and sorts them in ascending order.
func areasOf(members []string, err error) ([]procfleet.CloudArea, error) {
	if err != nil {
		return nil, fmt.Errorf("list cloud areas: %w", err)
	}
	clouds := make([]procfleet.CloudArea, len(members))
	for i, m := range members {
		n, err := strconv.ParseInt(m, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: cloud area %.40q", redisconn.ErrDamaged, m)
		}
		clouds[i] = procfleet.CloudArea(n)
	}
	slices.SortFunc(clouds, cmp.Compare)
	return clouds, nil
}
