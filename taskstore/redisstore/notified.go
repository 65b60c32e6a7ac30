package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

// In a cluster the index is not on the server of a task. That server may be replaced by
// a replica that lacks the last results of a task after its notification was sent. Only
// a visit of the sweep can then end the task again. Therefore the index remembers
// notified tasks for a while. If a server was replaced in that time, the sweep visits
// all of them; otherwise they are removed without a visit.

// secondLook is how long a notified task is remembered. It is longer than a fail-over
// takes.
const secondLook = time.Minute

// moveToNotifiedScript moves a task from the sweep index to the notified tasks.
//
// KEYS[1] sweep
// KEYS[2] notified
// KEYS[3] servers
// ARGV[1] the task's number
// ARGV[2] shard
// ARGV[3] hash of the run ids of the masters, or "" if it is not known
// Returns 1 if it had a visit, else 0.
var moveToNotifiedScript = redis.NewScript(redisconn.LuaNow + `
local life, time = redis.call('PTTL', KEYS[1]), now()
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZADD', KEYS[2], text(time), ARGV[1])
if ARGV[3] ~= '' and redis.call('HSETNX', KEYS[3], ARGV[2], ARGV[3]) == 1 then
  redis.call('PEXPIREAT', KEYS[3], text(math.floor(time / 1000) + 30 * 86400000))
end
if redis.call('PTTL', KEYS[2]) < life then
  redis.call('PEXPIREAT', KEYS[2], text(math.floor(time / 1000) + life))
end
return 1
`)

// forgetNotifiedScript removes notified tasks. If a server was replaced since its last
// run, it schedules an immediate visit for each of them instead. Without run ids, each
// task gets a visit.
//
// KEYS[1] sweep
// KEYS[2] notified
// KEYS[3] servers
// ARGV[1] shard
// ARGV[2] hash of the run ids of the masters, or "" if the user may not run INFO
// ARGV[3] microseconds for which a notified task is remembered
// Returns the number of tasks that got a visit.
var forgetNotifiedScript = redis.NewScript(redisconn.LuaNow + `
local time, most = now(), 1000
local old, visit = text(time - ARGV[3])
if ARGV[2] == '' then
  visit = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', old, 'LIMIT', 0, most)
elseif redis.call('HGET', KEYS[3], ARGV[1]) ~= ARGV[2] then
  visit = redis.call('ZRANGE', KEYS[2], 0, most - 1)
  if #visit < most then
    redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
    redis.call('PEXPIREAT', KEYS[3], text(math.floor(time / 1000) + 30 * 86400000))
  end
else
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', old)
  -- of before the clock stepped back
  visit = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. text(time + ARGV[3]), '+inf', 'LIMIT', 0, most)
end
if #visit == 0 then return 0 end
local life = redis.call('PTTL', KEYS[2])
redis.call('ZREM', KEYS[2], unpack(visit))
for _, number in ipairs(visit) do redis.call('ZADD', KEYS[1], text(time), number) end
if redis.call('PTTL', KEYS[1]) < life then
  redis.call('PEXPIREAT', KEYS[1], text(math.floor(time / 1000) + life))
end
return #visit
`)

// moveToNotified returns the call that moves a task from the sweep index to the
// notified tasks.
func (s *Store) moveToNotified(ctx context.Context, n procfleet.Number) *redisconn.Call {
	shard, now := taskstore.Shard(n), ""
	if cluster, ok := s.conn.Client().(*redis.ClusterClient); ok {
		now, _ = s.servers.read(ctx, cluster)
	}
	return &redisconn.Call{
		Script: moveToNotifiedScript, Keys: []string{s.keys.sweep(shard), s.keys.notified(shard), s.keys.servers()}, Args: []any{int64(n), shard, now},
	}
}

// forgetNotified returns the call that removes the notified tasks of a shard. It
// returns nil outside of a cluster, and while a server is unavailable.
func (s *Store) forgetNotified(ctx context.Context, shard int) *redisconn.Call {
	cluster, ok := s.conn.Client().(*redis.ClusterClient)
	if !ok {
		return nil
	}
	servers, known := s.servers.read(ctx, cluster)
	if !known {
		return nil
	}
	return &redisconn.Call{
		Script: forgetNotifiedScript,
		Keys:   []string{s.keys.sweep(shard), s.keys.notified(shard), s.keys.servers()},
		Args:   []any{shard, servers, secondLook.Microseconds()},
	}
}

// servers caches the identities of a cluster's masters.
type servers struct {
	mu    sync.Mutex
	at    time.Time // time of the last reading
	known bool
	text  string
}

// serversAge is the maximum age of a cached reading.
const serversAge = time.Second

// read returns a hash of the masters' run ids, or "" if the user may not run INFO. The
// hash changes when a replica takes over and when a master restarts: in both cases the
// last writes may be lost.
func (v *servers) read(ctx context.Context, cluster *redis.ClusterClient) (text string, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.at) < serversAge {
		return v.text, v.known
	}
	var mu sync.Mutex
	var runs []string
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error {
		info, err := server.Info(ctx, "server").Result()
		if err != nil {
			return err
		}
		run := redisconn.InfoField(info, "run_id")
		if run == "" {
			return fmt.Errorf("%w: INFO without a run_id", redisconn.ErrDamaged)
		}
		mu.Lock()
		defer mu.Unlock()
		runs = append(runs, run)
		return nil
	})
	if ctx.Err() != nil {
		return "", false
	}
	v.at, v.known, v.text = time.Now(), true, ""
	switch {
	case err == nil:
		slices.Sort(runs)
		sum := sha256.Sum256([]byte(strings.Join(runs, " ")))
		v.text = hex.EncodeToString(sum[:16])
	case redisconn.IsTransient(err):
		v.known = false
	}
	return v.text, v.known
}
