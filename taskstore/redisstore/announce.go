package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

// announceScript stores announcements of agents in one cloud area. The entry of a host
// begins with a head, which the script reads and writes (see [readEntry]). The packed
// announcement follows, which the script does not interpret.
//
// KEYS[1] hosts
// KEYS[2] live
// KEYS[3] order
// KEYS[4] agents
// KEYS[5] gone
// KEYS[6] bound
// KEYS[7] names
// KEYS[8] other claimants
// ARGV[1] presence time-to-live of an announcement, in microseconds
// ARGV[2] further microseconds for which a host without presence is remembered
// ARGV[3..] for each announcement: address, "leaving" or "", claimant key (16 letters, the
// first 8 identify the instance), agent id, packed announcement
// Returns the addresses of hosts to forget; see [Store.forget].
var announceScript = redis.NewScript(redisconn.LuaNow + `
local time, ttl, memory, sub = now(), tonumber(ARGV[1]), tonumber(ARGV[2]), string.sub
local none = string.rep('0', 16)
local function stamp(n) return string.format('%016.0f', n) end
local function alive(ends) return tonumber(ends) > time end
-- where the agent id begins, with its length
local function rest(entry) return 66 + 32 * tonumber(sub(entry, 65, 65)) end
local function agentOf(entry)
  local at = rest(entry)
  return sub(entry, at + 5, at + 4 + tonumber(sub(entry, at, at + 4)))
end
-- an agent that announces another id than before ends the ids that were bound
-- to its host
local function unbind(addr, id)
  local names = redis.call('HGET', KEYS[7], addr)
  if not names then return end
  local kept = {}
  for _, name in ipairs(cjson.decode(names)) do
    if name == id then
      kept[1] = name
    elseif redis.call('HGET', KEYS[6], name) == addr then
      redis.call('HDEL', KEYS[6], name)
    end
  end
  if #kept > 0 then
    redis.call('HSET', KEYS[7], addr, cjson.encode(kept))
  else
    redis.call('HDEL', KEYS[7], addr)
  end
end
-- An id is of the host that announced it last; the other hosts whose agents
-- announce it are its other claimants.
local function keepClaimants(id, addrs)
  while #addrs >= ` + strconv.Itoa(taskstore.MaxClaimants) + ` do table.remove(addrs, 1) end
  if #addrs > 0 then
    redis.call('HSET', KEYS[8], id, table.concat(addrs, ' '))
  else
    redis.call('HDEL', KEYS[8], id)
  end
end
local function otherClaimants(id, addr)
  local others, found = {}, false
  for other in string.gmatch(redis.call('HGET', KEYS[8], id) or '', '%S+') do
    if other == addr then found = true else others[#others + 1] = other end
  end
  return others, found
end
local function claim(addr, id)
  local last = redis.call('HGET', KEYS[4], id)
  if last == addr then return end
  redis.call('HSET', KEYS[4], id, addr)
  local others, found = otherClaimants(id, addr)
  if last then others[#others + 1] = last end
  if last or found then keepClaimants(id, others) end
end
local function unresolve(addr, id)
  if redis.call('HGET', KEYS[4], id) == addr then redis.call('HDEL', KEYS[4], id) end
  local others, found = otherClaimants(id, addr)
  if found then keepClaimants(id, others) end
end

-- takes a host out of what is shown; its entry stays
local function retire(addr, entry, ends)
  unresolve(addr, agentOf(entry))
  redis.call('ZREM', KEYS[2], addr)
  redis.call('ZREM', KEYS[3], addr)
  redis.call('ZADD', KEYS[5], ends, addr)
end

-- the living claimants but for one, by when they were heard of, and whether
-- that one lives and another was heard of after it
local function living(entry, claimant)
  local list, found = {}, nil
  local function look(other, ends)
    if not alive(ends) then return end
    if other == claimant then found = #list else list[#list + 1] = other .. ends end
  end
  for at = 66, rest(entry) - 1, 32 do look(sub(entry, at, at + 15), sub(entry, at + 16, at + 31)) end
  look(sub(entry, 33, 48), sub(entry, 1, 16))
  return list, found and found < #list
end

local function leave(addr, entry, claimant)
  if not entry then return end
  local list, last = living(entry, claimant), sub(entry, 33, 48)
  local conflict = #list > 1 and sub(entry, 49, 64) or none
  local ends = sub(entry, 1, 16)
  if alive(ends) then
    if last == claimant then
      ends = stamp(time)
      retire(addr, entry, ends)
    else
      table.remove(list) -- the last one, which is not among the others
    end
  end
  redis.call('HSET', KEYS[1], addr, ends .. sub(entry, 17, 48) .. conflict .. #list .. table.concat(list) .. sub(entry, rest(entry)))
end

-- what is known of the host's claimants now: the head after the first stamp
local function hearOf(entry, claimant)
  if not entry or not alive(sub(entry, 1, 16) + memory) then return stamp(time) .. claimant .. none .. '0' end
  local last = sub(entry, 33, 48)
  if last == claimant then return sub(entry, 17, rest(entry) - 1) end
  local list, turns = living(entry, claimant)
  local conflict = turns and sub(list[#list], 17) or sub(entry, 49, 64)
  if #list > 8 then table.remove(list, 1) end
  local since = sub(last, 1, 8) == sub(claimant, 1, 8) and sub(entry, 17, 32) or stamp(time)
  return since .. claimant .. conflict .. #list .. table.concat(list)
end

local function hear(addr, entry, claimant, id, packed)
  if entry and agentOf(entry) ~= id then unresolve(addr, agentOf(entry)) end
  if id ~= '' then
    claim(addr, id)
    if not entry or agentOf(entry) ~= id then unbind(addr, id) end
  end
  local ends = stamp(time + ttl)
  redis.call('HSET', KEYS[1], addr, ends .. hearOf(entry, claimant) .. string.format('%05d', #id) .. id .. packed)
  -- not by what the entry says: a clock that was ahead may have retired a host
  -- whose entry counts again
  if redis.call('ZADD', KEYS[2], ends, addr) == 1 then
    redis.call('ZADD', KEYS[3], 0, addr)
    redis.call('ZREM', KEYS[5], addr)
  end
end

for i = 3, #ARGV, 5 do
  local addr = ARGV[i]
  local entry = redis.call('HGET', KEYS[1], addr)
  if ARGV[i + 1] == 'leaving' then
    leave(addr, entry, ARGV[i + 2])
  else
    hear(addr, entry, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
  end
end

for _, addr in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(time), 'LIMIT', 0, 100)) do
  local entry = redis.call('HGET', KEYS[1], addr)
  if entry then retire(addr, entry, sub(entry, 1, 16)) else redis.call('ZREM', KEYS[2], addr) end
end
for _, i in ipairs({1, 2, 3, 4, 5, 8}) do redis.call('PEXPIREAT', KEYS[i], text(math.ceil((time + 2 * ttl + memory) / 1000))) end
return redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', text(time - memory), 'LIMIT', 0, 100)
`)

// areasScript records which cloud areas have live agents, and removes cloud areas that
// have none.
//
// KEYS[1] clouds
// ARGV[1] presence time-to-live of an announcement, in microseconds
// ARGV[2..] cloud areas
// Returns 1.
var areasScript = redis.NewScript(redisconn.LuaNow + `
local time, ttl = now(), tonumber(ARGV[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], text(time), ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(time - 2 * ttl))
redis.call('PEXPIREAT', KEYS[1], text(math.ceil((time + 2 * ttl) / 1000)))
return 1
`)

const (
	// presenceTTL and instanceMemory are [taskstore.PresenceTTL] and
	// [taskstore.InstanceMemory] in microseconds, as scripts expect them.
	presenceTTL    = int64(taskstore.PresenceTTL / time.Microsecond)
	instanceMemory = int64(taskstore.InstanceMemory / time.Microsecond)
)

// Announce stores announcements in one round trip, with one script call for each cloud
// area. It skips an announcement that it cannot store, so that one agent's announcement
// does not block those of other agents.
func (s *Store) Announce(ctx context.Context, as []taskstore.Announcement) error {
	areas := &redisconn.Call{Script: areasScript, Keys: []string{s.keys.clouds()}, Args: []any{presenceTTL}}
	calls := []*redisconn.Call{areas}
	byCloud := make(map[procfleet.CloudArea]*redisconn.Call)
	for i := range as {
		a := &as[i]
		if a.Host.IsZero() || len(a.AgentID) > taskstore.MaxAgentID {
			s.conn.Log().WithField("host", a.Host).Warn("announcement ignored: host or agent id invalid")
			continue
		}
		c := byCloud[a.Host.Cloud]
		if c == nil {
			c = &redisconn.Call{Script: announceScript, Keys: s.keys.presence(a.Host.Cloud).all(), Args: []any{presenceTTL, instanceMemory}}
			byCloud[a.Host.Cloud] = c
			calls = append(calls, c)
			areas.Args = append(areas.Args, int64(a.Host.Cloud))
		}
		leaving := ""
		if a.Leaving {
			leaving = "leaving"
		}
		c.Args = append(c.Args, a.Host.Addr.String(), leaving, claimantKey(a), a.AgentID, packAnnouncement(a))
	}
	if len(byCloud) == 0 {
		return nil
	}
	if err := s.conn.Run(ctx, calls...); err != nil {
		return fmt.Errorf("keep announcements: %w", err)
	}
	for cloud, c := range byCloud {
		addrs, err := c.Cmd.StringSlice()
		if err == nil && len(addrs) > 0 {
			err = s.forget(ctx, cloud, addrs)
		}
		if err != nil {
			s.conn.Log().WithError(err).WithField("cloud", cloud).Warn("expired hosts not removed, retrying")
		}
	}
	return nil
}

// claimantKey identifies an agent process in the fixed width that the head of an entry
// has for it: the first half is a hash of the instance id, the second half of the
// incarnation.
func claimantKey(a *taskstore.Announcement) string {
	instance, incarnation := sha256.Sum256([]byte(a.Instance)), sha256.Sum256([]byte(a.Incarnation))
	const half = redisconn.StampWidth / 4
	return hex.EncodeToString(instance[:half]) + hex.EncodeToString(incarnation[:half])
}
