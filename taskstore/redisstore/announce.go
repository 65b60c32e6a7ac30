package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// announceScript keeps what agents of one cloud area say. A host's entry has
// a head that the script reads and writes (see [readEntry]) and then the
// announcement as it came, which it does not look into.
//
// KEYS[1] hosts
// KEYS[2] seen
// KEYS[3] order
// KEYS[4] agents
// ARGV[1] microseconds for which an announcement counts
// ARGV[2..] for each announcement: address, "leaving" or "", instance
// (16 letters), agent id, packed announcement
// Returns the number of entries that it dropped as too old.
var announceScript = redis.NewScript(luaNow + `
local time, ttl, sub = now(), tonumber(ARGV[1]), string.sub
local none = string.rep('0', 16)
local function stamp(n) return string.format('%016.0f', n) end
local function alive(seen) return tonumber(seen) > time - ttl end
-- where the agent id begins, with its length
local function rest(entry) return 66 + 32 * tonumber(sub(entry, 65, 65)) end
local function agentOf(entry)
  local at = rest(entry)
  return sub(entry, at + 5, at + 4 + tonumber(sub(entry, at, at + 4)))
end
local function unresolve(addr, id)
  if redis.call('HGET', KEYS[4], id) == addr then redis.call('HDEL', KEYS[4], id) end
end

local function forget(addr, entry)
  unresolve(addr, agentOf(entry))
  redis.call('HDEL', KEYS[1], addr)
  redis.call('ZREM', KEYS[2], addr)
  redis.call('ZREM', KEYS[3], addr)
end

-- the living others but for one instance, and whether that was among them
local function others(entry, instance)
  local list, found = {}, false
  for at = 66, rest(entry) - 1, 32 do
    if alive(sub(entry, at + 16, at + 31)) then
      if sub(entry, at, at + 15) == instance then found = true else list[#list + 1] = sub(entry, at, at + 31) end
    end
  end
  return list, found
end

local function leave(addr, entry, instance)
  if not entry then return end
  if sub(entry, 33, 48) == instance then return forget(addr, entry) end
  local list = others(entry, instance)
  local conflict = #list > 0 and sub(entry, 49, 64) or none
  redis.call('HSET', KEYS[1], addr, sub(entry, 1, 48) .. conflict .. #list .. table.concat(list) .. sub(entry, rest(entry)))
end

-- what is known of the host's instances now: the head after the first stamp
local function hearOf(entry, instance)
  if not entry or not alive(sub(entry, 1, 16)) then return stamp(time) .. instance .. none .. '0' end
  if sub(entry, 33, 48) == instance then return sub(entry, 17, rest(entry) - 1) end
  local list, returned = others(entry, instance)
  local conflict = sub(entry, 49, 64)
  if returned then conflict = stamp(tonumber(sub(entry, 1, 16)) + ttl) end
  list[#list + 1] = sub(entry, 33, 48) .. sub(entry, 1, 16)
  if #list > 8 then table.remove(list, 1) end
  return stamp(time) .. instance .. conflict .. #list .. table.concat(list)
end

local function hear(addr, entry, instance, id, packed)
  if not entry then
    redis.call('ZADD', KEYS[3], 0, addr)
  elseif agentOf(entry) ~= id then
    unresolve(addr, agentOf(entry))
  end
  if id ~= '' then redis.call('HSET', KEYS[4], id, addr) end
  redis.call('HSET', KEYS[1], addr, stamp(time) .. hearOf(entry, instance) .. string.format('%05d', #id) .. id .. packed)
  redis.call('ZADD', KEYS[2], text(time), addr)
end

for i = 2, #ARGV, 5 do
  local addr = ARGV[i]
  local entry = redis.call('HGET', KEYS[1], addr)
  if ARGV[i + 1] == 'leaving' then
    leave(addr, entry, ARGV[i + 2])
  else
    hear(addr, entry, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
  end
end

local past = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(time - ttl), 'LIMIT', 0, 100)
for _, addr in ipairs(past) do
  local entry = redis.call('HGET', KEYS[1], addr)
  if entry then forget(addr, entry) else redis.call('ZREM', KEYS[2], addr) end
end
for _, key in ipairs(KEYS) do redis.call('PEXPIREAT', key, text(math.ceil((time + 2 * ttl) / 1000))) end
return #past
`)

// areasScript notes that agents of cloud areas were heard of, and forgets the
// areas that were not.
//
// KEYS[1] clouds
// ARGV[1] microseconds for which an announcement counts
// ARGV[2..] cloud areas
// Returns 1.
var areasScript = redis.NewScript(luaNow + `
local time, ttl = now(), tonumber(ARGV[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], text(time), ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(time - 2 * ttl))
redis.call('PEXPIREAT', KEYS[1], text(math.ceil((time + 2 * ttl) / 1000)))
return 1
`)

const (
	// maxAgentID bounds the agent id that is kept, in bytes.
	maxAgentID = 1 << 10
	// presenceTTL is how scripts are told [taskstore.PresenceTTL].
	presenceTTL = int64(taskstore.PresenceTTL / time.Microsecond)
)

// Announce is one round trip, with one script call for each cloud area. An
// announcement that cannot be kept is left out, so that one agent's does not
// hold up the others'.
func (s *Store) Announce(ctx context.Context, as []taskstore.Announcement) error {
	areas := &call{script: areasScript, keys: []string{s.keys.clouds()}, args: []any{presenceTTL}}
	calls := []*call{areas}
	byCloud := make(map[procfleet.CloudArea]*call)
	for i := range as {
		a := &as[i]
		if a.Host.IsZero() || len(a.AgentID) > maxAgentID {
			s.log.WithField("host", a.Host).Warn("announcement ignored: it has no host, or its agent id is too long")
			continue
		}
		c := byCloud[a.Host.Cloud]
		if c == nil {
			keys := s.keys.presence(a.Host.Cloud)
			c = &call{script: announceScript, keys: []string{keys.hosts(), keys.seen(), keys.order(), keys.agents()}, args: []any{presenceTTL}}
			byCloud[a.Host.Cloud] = c
			calls = append(calls, c)
			areas.args = append(areas.args, int64(a.Host.Cloud))
		}
		leaving := ""
		if a.Leaving {
			leaving = "leaving"
		}
		c.args = append(c.args, a.Host.Addr.String(), leaving, instanceKey(a.Instance), a.AgentID, packAnnouncement(a))
	}
	if len(byCloud) == 0 {
		return nil
	}
	if err := s.run(ctx, calls...); err != nil {
		return fmt.Errorf("keep announcements: %w", err)
	}
	return nil
}

// instanceKey gives every instance id, whatever its form, the width that the
// head of an entry has room for.
func instanceKey(instance string) string {
	sum := sha256.Sum256([]byte(instance))
	return hex.EncodeToString(sum[:8])
}
