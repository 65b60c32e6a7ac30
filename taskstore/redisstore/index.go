package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// luaTick allots the next number: the time, or one more than the last number
// where the clock stood still or went back. What the caller has seen counts
// as allotted even if a fail-over lost it.
const luaTick = luaNow + `
local function tick(clock, seen)
  local time = now()
  local last = math.max(tonumber(redis.call('GET', clock) or 0), tonumber(seen))
  local number = math.max(time, last + 1)
  redis.call('SET', clock, text(number))
  return text(number), text(time)
end
`

// tickScript allots a number.
//
// KEYS[1] clock
// ARGV[1] highest number that the caller has seen
// Returns {number, microseconds of the store's clock}.
var tickScript = redis.NewScript(luaTick + `
local number, time = tick(KEYS[1], ARGV[1])
return {number, time}
`)

// enrolScript puts a task into the indexes, allotting its number if it has
// none, with its first visit still to come, and drops from the list what has expired.
//
// KEYS[1] clock
// KEYS[2] tasks
// KEYS[3] expiries
// KEYS[4..19] sweep, one for each shard
// ARGV[1] highest number that the caller has seen
// ARGV[2] the task's number, or "" to allot one
// ARGV[3] microseconds until the first visit
// ARGV[4] milliseconds until the task expires
// ARGV[5] the task's shard, or the number of shards if ARGV[2] is ""
// Returns {number, microseconds of the store's clock}.
var enrolScript = redis.NewScript(luaTick + `
local number, time = ARGV[2], text(now())
local shard = tonumber(ARGV[5])
if number == '' then
  number, time = tick(KEYS[1], ARGV[1])
  shard = tonumber(number) % shard
end
local ms, lifetime = math.floor(time / 1000), tonumber(ARGV[4])
local sweep = KEYS[4 + shard]
redis.call('ZADD', sweep, text(time + ARGV[3]), number)
redis.call('ZADD', KEYS[2], number, number)
redis.call('ZADD', KEYS[3], text(ms + lifetime), number)
for _, key in ipairs({sweep, KEYS[2], KEYS[3]}) do
  if redis.call('PTTL', key) < lifetime then redis.call('PEXPIREAT', key, text(ms + lifetime + 60000)) end
end
if shard > 0 then return {number, time} end
local past = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', text(ms), 'LIMIT', 0, 2000)
if #past > 0 then
  redis.call('ZREM', KEYS[2], unpack(past))
  redis.call('ZREM', KEYS[3], unpack(past))
end
return {number, time}
`)

// claimScript makes an idempotency key point to another number if it points
// where the caller thinks.
//
// KEYS[1] request
// ARGV[1] the number that the caller read, 0 for none
// ARGV[2] the number that the caller wants
// ARGV[3] when the record expires, in milliseconds since the epoch
// Returns the number that is there now.
var claimScript = redis.NewScript(`
local has = redis.call('GET', KEYS[1]) or '0'
if has ~= ARGV[1] then return has end
redis.call('SET', KEYS[1], ARGV[2], 'PXAT', ARGV[3])
return ARGV[2]
`)

// tick allots a number.
func (s *Store) tick(ctx context.Context) (procfleet.Number, time.Time, error) {
	c := &call{script: tickScript, keys: []string{s.keys.clock()}, args: []any{s.highest.Load()}}
	if err := s.run(ctx, c); err != nil {
		return 0, time.Time{}, err
	}
	return s.allotted(c)
}

// enrol puts a task into the indexes; a zero number is allotted. It is as
// durable as the task: one that is missing in the index would never end.
func (s *Store) enrol(ctx context.Context, n procfleet.Number, d *taskstore.Draft) (procfleet.Number, time.Time, error) {
	given, shard := "", taskstore.SweepShards
	if n != 0 {
		given, shard = strconv.FormatInt(int64(n), 10), taskstore.Shard(n)
	}
	c := &call{
		script: enrolScript,
		keys:   s.keys.index(),
		args:   []any{s.highest.Load(), given, taskstore.FirstVisitOf(d.Timeout).Microseconds(), lifetime(d).Milliseconds(), shard},
	}
	if err := s.runDurably(ctx, c); err != nil {
		return 0, time.Time{}, err
	}
	return s.allotted(c)
}

// allotted reads the answer {number, time}.
func (s *Store) allotted(c *call) (procfleet.Number, time.Time, error) {
	answer, err := c.cmd.Int64Slice()
	if err != nil || len(answer) != 2 {
		return 0, time.Time{}, fmt.Errorf("%w: number and time: %w", errDamaged, err)
	}
	s.raise(answer[0])
	return procfleet.Number(answer[0]), moment(answer[1]), nil
}

// raise notes the highest number seen.
func (s *Store) raise(n int64) {
	for {
		seen := s.highest.Load()
		if n <= seen || s.highest.CompareAndSwap(seen, n) {
			return
		}
	}
}

// claim makes the draft's idempotency key point to want if it points to read,
// and returns where it points to then; zero is nowhere.
func (s *Store) claim(ctx context.Context, d *taskstore.Draft, read, want procfleet.Number, expires time.Time) (procfleet.Number, error) {
	c := &call{
		script: claimScript,
		keys:   []string{s.keys.request(d.Application, d.IdempotencyKey)},
		args:   []any{int64(read), int64(want), expiry(expires)},
	}
	if err := s.runDurably(ctx, c); err != nil {
		return 0, err
	}
	n, err := c.number()
	return procfleet.Number(n), err
}
