package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

// luaNext computes the next number: the time in microseconds, or the last number plus
// one if the clock has not passed that. The highest number that the caller has seen
// counts as allotted even if a fail-over has lost it.
const luaNext = redisconn.LuaNow + `
local function following(clock, seen, time)
  return math.max(time, (redis.call('GET', clock) or 0) + 1, seen + 1)
end
`

// tickScript allots a number.
//
// KEYS[1] clock
// ARGV[1] highest number that the caller has seen
// Returns {number, microseconds of the store's clock}.
var tickScript = redis.NewScript(luaNext + `
local time = now()
local number = text(following(KEYS[1], ARGV[1], time))
redis.call('SET', KEYS[1], number)
return {number, text(time)}
`)

// enrolScript enters a task into the indexes, with its first visit in the future. It
// allots a number to a task that has none. It removes expired tasks from the list. The
// list and the expiries have the same members and the same expiry.
//
// KEYS[1] clock
// KEYS[2] tasks
// KEYS[3] expiries
// KEYS[4] sweep, of the task's shard
// ARGV[1] highest number that the caller has seen
// ARGV[2] the task's number, or "" to allot the next number of the shard
// ARGV[3] microseconds until the first visit
// ARGV[4] milliseconds until the task expires
// ARGV[5] the task's shard
// ARGV[6] number of shards
// Returns {number, microseconds of the store's clock}.
var enrolScript = redis.NewScript(luaNext + `
local time, number = now(), ARGV[2]
if number == '' then
  number = following(KEYS[1], ARGV[1], time)
  number = text(number + (ARGV[5] - number) % ARGV[6])
  redis.call('SET', KEYS[1], number)
end
local ms, lifetime = math.floor(time / 1000), tonumber(ARGV[4])
redis.call('ZADD', KEYS[4], text(time + ARGV[3]), number)
redis.call('ZADD', KEYS[2], number, number)
redis.call('ZADD', KEYS[3], text(ms + lifetime), number)
local function last(key, ...)
  if redis.call('PTTL', key) >= lifetime then return end
  for _, k in ipairs({key, ...}) do redis.call('PEXPIREAT', k, text(ms + lifetime + 60000)) end
end
last(KEYS[4])
last(KEYS[3], KEYS[2])
if ARGV[5] ~= '0' then return {number, text(time)} end
local past = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', text(ms), 'LIMIT', 0, 2000)
if #past > 0 then
  redis.call('ZREM', KEYS[2], unpack(past))
  redis.call('ZREM', KEYS[3], unpack(past))
end
return {number, text(time)}
`)

// claimScript makes an idempotency key point to another number, if it still points to
// the number that the caller read.
//
// KEYS[1] request
// ARGV[1] the number that the caller read; 0 if the key did not exist
// ARGV[2] the new number
// ARGV[3] expiry of the record, in milliseconds since the Unix epoch
// Returns the number to which the key points afterwards.
var claimScript = redis.NewScript(`
local has = redis.call('GET', KEYS[1]) or '0'
if has ~= ARGV[1] then return has end
redis.call('SET', KEYS[1], ARGV[2], 'PXAT', ARGV[3])
return ARGV[2]
`)

// tick allots a number and returns it with the time.
func (s *Store) tick(ctx context.Context) (procfleet.Number, time.Time, error) {
	c := &redisconn.Call{Script: tickScript, Keys: []string{s.conn.ClockKey()}, Args: []any{s.highest.Load()}}
	if err := s.conn.Run(ctx, c); err != nil {
		return 0, time.Time{}, err
	}
	return s.allotted(c)
}

// enrol enters a task into the indexes; it allots a number if n is zero. It chooses the
// shard before the number, so that the script declares only the key of that shard. The
// entry is as durable as the task, because a task without an entry would never end.
// visit is the delay until the sweep's first visit.
func (s *Store) enrol(ctx context.Context, n procfleet.Number, d *taskstore.Draft, visit time.Duration) (procfleet.Number, time.Time, error) {
	given, shard := "", rand.IntN(taskstore.SweepShards) //nolint:gosec // the choice of the shard is no secret
	if n != 0 {
		given, shard = strconv.FormatInt(int64(n), 10), taskstore.Shard(n)
	}
	c := &redisconn.Call{
		Script: enrolScript,
		Keys:   []string{s.conn.ClockKey(), s.keys.tasks(), s.keys.expiries(), s.keys.sweep(shard)},
		Args: []any{
			s.highest.Load(), given, visit.Microseconds(), lifetime(d).Milliseconds(),
			shard, taskstore.SweepShards,
		},
	}
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return 0, time.Time{}, err
	}
	return s.allotted(c)
}

// allotted reads the reply {number, time} and records the highest number.
func (s *Store) allotted(c *redisconn.Call) (procfleet.Number, time.Time, error) {
	answer, err := c.Cmd.Int64Slice()
	if err != nil || len(answer) != 2 {
		return 0, time.Time{}, fmt.Errorf("%w: number and time: %w", redisconn.ErrDamaged, err)
	}
	s.highest.Raise(answer[0])
	return procfleet.Number(answer[0]), redisconn.Moment(answer[1]), nil
}

// claim makes the draft's idempotency key point to want if it points to read. It
// returns the number to which the key points afterwards; zero means that the key does
// not exist.
func (s *Store) claim(ctx context.Context, d *taskstore.Draft, read, want procfleet.Number, expires time.Time) (procfleet.Number, error) {
	c := &redisconn.Call{
		Script: claimScript,
		Keys:   []string{s.keys.request(d.Application, d.IdempotencyKey)},
		Args:   []any{int64(read), int64(want), expiry(expires)},
	}
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return 0, err
	}
	n, err := c.Number()
	return procfleet.Number(n), err
}
