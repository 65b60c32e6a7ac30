package redisstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// awayScript lets units of a rollout wait for their hosts.
//
// KEYS[1] head
// KEYS[2] marks
// ARGV[1] number of the chunk
// ARGV[2] "sent" if an agent may have accepted items
// ARGV[3..] items
// Returns 1, or 0 if there is no such task.
var awayScript = redis.NewScript(redisconn.LuaNow + luaItemsOf + luaNote + luaRollout + `
local k = ARGV[1]
local h = redis.call('HMGET', KEYS[1], 'state', 'release', 'about', 'cancel', 'directory', 'units:' .. k, 'granted:' .. k, 'grants:' .. k, 'zone:' .. k)
if not h[1] then return 0 end
if h[1] == 'finished' or h[1] == 'rejected' or not h[2] or h[4] or not h[7] or not cjson.decode(h[3]).g.k then return 1 end
local r, units, granted = cjson.decode(h[2]), h[6], tonumber(h[7])
local first, past = itemsOf(h[5], k)
local marks, chosen = redis.call('GETRANGE', KEYS[2], first, past - 1), {}
for i = 3, #ARGV do
  local item = ARGV[i] - first
  if item >= 0 and item < granted and string.byte(marks, item + 1) == 112 then
    local from = unitStart(units, item)
    local stop = unitEnd(units, from)
    local unit = string.sub(marks, from + 1, stop)
    if not string.find(unit, 'd') then
      marks = string.sub(marks, 1, from) .. string.gsub(unit, 'p', 'w') .. string.sub(marks, stop + 1)
      activate(r, h[9], -1)
      r.q, chosen[from] = (r.q or 0) + 1, true
    end
  end
end
if not next(chosen) then return 1 end
r.m = text(now())
redis.call('SETRANGE', KEYS[2], first, marks)
redis.call('HSET', KEYS[1], 'grants:' .. k, (regrant(h[8], units, chosen, r.m, r.m, ARGV[2] == '')))
saveRelease(r)
return 1
`)

// Away lets units of a rollout wait for their hosts, in one round trip.
func (s *Store) Away(ctx context.Context, id procfleet.TaskID, chunk int, items []int, sent bool) error {
	if _, err := number(id); err != nil {
		return err
	}
	keys := s.keys.task(id)
	c := &redisconn.Call{Script: awayScript, Keys: []string{keys.head(), keys.marks()}, Args: []any{chunk, ""}}
	if sent {
		c.Args[1] = "sent"
	}
	for _, i := range slices.Sorted(slices.Values(items)) {
		c.Args = append(c.Args, i)
	}
	if err := s.conn.Run(ctx, c); err != nil {
		return fmt.Errorf("let items of task %s wait: %w", id, err)
	}
	if n, err := c.Number(); err != nil || n == 0 {
		return fmt.Errorf("let items of task %s wait: %w", id, missing(err))
	}
	return nil
}
