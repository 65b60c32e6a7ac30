package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

// leaseScript acquires or renews a lease. A lease that lasts longer than the longest
// one was acquired before the clock stepped back, so it is treated as expired.
//
// KEYS[1] lease
// ARGV[1] holder
// ARGV[2] milliseconds
// ARGV[3] milliseconds of the longest lease
// Returns 1 if the holder has the lease afterwards, else 0.
var leaseScript = redis.NewScript(`
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] and redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[3]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
`)

// releaseScript releases a lease if the holder has it.
//
// KEYS[1] lease
// ARGV[1] holder
// Returns 1 if the holder had it, else 0.
var releaseScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
`)

// dueScript returns the visits that are due. A visit that is too far in the future was
// scheduled before the clock stepped back, so it is due as well.
//
// KEYS[1] sweep
// ARGV[1] maximum number of visits
// ARGV[2] microseconds of the longest delay of a visit
// Returns the number and the moment of each visit, one after the other, the longest
// overdue first.
var dueScript = redis.NewScript(redisconn.LuaNow + `
local time, most = now(), tonumber(ARGV[1])
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(time), 'WITHSCORES', 'LIMIT', 0, most)
if #due < 2 * most then
  local ahead = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(time + ARGV[2]), '+inf', 'WITHSCORES', 'LIMIT', 0, most - #due / 2)
  for _, v in ipairs(ahead) do due[#due + 1] = v end
end
return due
`)

// undoneScript returns the chunks of a task that are not done. A chunk of a rollout is done when
// the round of its cancel was, or when it has no open items.
//
// KEYS[1] head
// KEYS[2] marks
// Returns {chunk, position in the stream or "", time of the first begin or ""} for each
// chunk, one after the other, or {-1} if there is no such task.
var undoneScript = redis.NewScript(luaItemsOf + `
local h = redis.call('HMGET', KEYS[1], 'chunks', 'release', 'cancel', 'directory')
if not h[1] then return {-1} end
local list = {}
for k = 0, h[1] - 1 do
  local d = redis.call('HMGET', KEYS[1], 'done:' .. k, 'sequence:' .. k, 'begun:' .. k)
  if h[2] and not h[3] then
    local first, past = itemsOf(h[4], k)
    d[1] = not string.find(redis.call('GETRANGE', KEYS[2], first, past - 1), '[pd]')
  end
  if not d[1] then
    list[#list + 1] = k
    list[#list + 1] = d[2] or ''
    list[#list + 1] = d[3] or ''
  end
end
return list
`)

// republishedScript records the position of a chunk in the stream.
//
// KEYS[1] head
// ARGV[1] number of the chunk
// ARGV[2] position
// Returns 1, or 0 if there is no such task.
var republishedScript = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'sequence:' .. ARGV[1], ARGV[2])
return 1
`)

// revisitScript reschedules visits that are still in the index.
//
// KEYS[1] sweep
// ARGV    for each task: its number, microseconds from now
// Returns 1.
var revisitScript = redis.NewScript(redisconn.LuaNow + `
local time, visits = now(), {}
for i = 1, #ARGV, 2 do
  visits[i], visits[i + 1] = text(time + ARGV[i + 1]), ARGV[i]
end
redis.call('ZADD', KEYS[1], 'XX', unpack(visits))
return 1
`)

// settleVisitsScript removes visits whose moment is still the one that the sweep read.
//
// KEYS[1] sweep
// ARGV    for each task: its number, microseconds of the visit or "" for any
// Returns 1.
var settleVisitsScript = redis.NewScript(`
local past = {}
for i = 1, #ARGV, 2 do
  local at = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if at and (ARGV[i + 1] == '' or tonumber(at) == tonumber(ARGV[i + 1])) then past[#past + 1] = ARGV[i] end
end
if #past > 0 then redis.call('ZREM', KEYS[1], unpack(past)) end
return 1
`)

// publishedScript records that the finished event of a finished task was published.
//
// KEYS[1] head
// Returns 1, or 0 if there is no such task.
var publishedScript = redis.NewScript(`
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 0 end
if state == 'finished' then redis.call('HSET', KEYS[1], '` + publishedField + `', 1) end
return 1
`)

// notifiedScript records that the completion of tasks was notified, and removes
// finished tasks from the sweep index. Its keys are in many slots, so it is not used in
// a cluster.
//
// KEYS    for each task: head, sweep
// ARGV    for each task: its number
// Returns 1.
var notifiedScript = redis.NewScript(`
for i, number in ipairs(ARGV) do
  local head, sweep = KEYS[2 * i - 1], KEYS[2 * i]
  redis.call('HDEL', head, 'notify')
  if redis.call('HGET', head, 'state') == 'finished' then redis.call('ZREM', sweep, number) end
end
return 1
`)

// Lease acquires or renews a lease, by the clock of the server that stores the lease.
func (s *Store) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	c := &redisconn.Call{
		Script: leaseScript, Keys: []string{s.keys.lease(name)},
		Args: []any{holder, max(min(ttl, taskstore.MaxLease).Milliseconds(), 1), taskstore.MaxLease.Milliseconds()},
	}
	if err := s.conn.Run(ctx, c); err != nil {
		return false, fmt.Errorf("lease %s: %w", name, err)
	}
	n, err := c.Number()
	return n == 1, err
}

// Release releases a lease if the holder has it.
func (s *Store) Release(ctx context.Context, name, holder string) error {
	c := &redisconn.Call{Script: releaseScript, Keys: []string{s.keys.lease(name)}, Args: []any{holder}}
	if err := s.conn.Run(ctx, c); err != nil {
		return fmt.Errorf("release lease %s: %w", name, err)
	}
	return nil
}

// Due returns the due visits of one shard of the sweep index.
func (s *Store) Due(ctx context.Context, shard, limit int) ([]taskstore.Visit, error) {
	c := &redisconn.Call{Script: dueScript, Keys: []string{s.keys.sweep(shard)}, Args: []any{limit, taskstore.MaxVisit.Microseconds()}}
	calls := []*redisconn.Call{c}
	if forget := s.forgetNotified(ctx, shard); forget != nil {
		calls = []*redisconn.Call{forget, c}
	}
	if err := s.conn.Run(ctx, calls...); err != nil {
		return nil, fmt.Errorf("due visits of shard %d: %w", shard, err)
	}
	values, err := c.Cmd.StringSlice()
	if err != nil || len(values)%2 != 0 {
		return nil, fmt.Errorf("%w: due visits of shard %d: %w", redisconn.ErrDamaged, shard, err)
	}
	visits := make([]taskstore.Visit, 0, len(values)/2)
	for ; len(values) > 0; values = values[2:] {
		ids, err := taskIDs(values[:1])
		if err != nil {
			return nil, err
		}
		at, err := strconv.ParseFloat(values[1], 64)
		if err != nil {
			return nil, fmt.Errorf("%w: moment of a visit %.40q", redisconn.ErrDamaged, values[1])
		}
		visits = append(visits, taskstore.Visit{Task: ids[0], At: redisconn.Moment(int64(at))})
	}
	return visits, nil
}

// TasksByID reads tasks in one round trip.
func (s *Store) TasksByID(ctx context.Context, ids []procfleet.TaskID) ([]procfleet.Task, error) {
	answers := make([]*redis.SliceCmd, len(ids))
	if err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		fields := taskFields()
		for i, id := range ids {
			if _, err := number(id); err == nil {
				answers[i] = pipe.HMGet(ctx, s.keys.task(id).head(), fields...)
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("read %d tasks: %w", len(ids), err)
	}
	tasks := make([]procfleet.Task, len(ids))
	for i, id := range ids {
		if answers[i] == nil {
			continue
		}
		t, err := readHead(id, answers[i].Val())
		if err != nil && !errors.Is(err, taskstore.ErrNotFound) {
			return nil, err
		}
		tasks[i] = t
	}
	return tasks, nil
}

// Undone returns the chunks of a task that are not done. It waits for replicas, because
// the caller publishes these chunks: if a fail-over lost the task, its chunks would
// run, and would run again when the caller, who received an error, submits the task
// again.
func (s *Store) Undone(ctx context.Context, id procfleet.TaskID) ([]taskstore.UndoneChunk, error) {
	if _, err := number(id); err != nil {
		return nil, err
	}
	keys := s.keys.task(id)
	c := &redisconn.Call{Script: undoneScript, Keys: []string{keys.head(), keys.marks()}}
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return nil, fmt.Errorf("undone chunks of task %s: %w", id, err)
	}
	values, err := c.Cmd.Slice()
	if err != nil || len(values)%3 != 0 {
		return nil, fmt.Errorf("undone chunks of task %s: %w", id, missing(err))
	}
	h := head{values: values}
	chunks := make([]taskstore.UndoneChunk, 0, len(values)/3)
	for len(h.values) > 0 {
		n, ok := h.values[0].(int64)
		if !ok {
			return nil, fmt.Errorf("%w: undone chunks of task %s", redisconn.ErrDamaged, id)
		}
		h.values = h.values[1:]
		chunks = append(chunks, taskstore.UndoneChunk{Chunk: int(n), Sequence: uint64(h.int()), Begun: redisconn.Moment(h.int())})
	}
	return chunks, nil
}

// Republished records a chunk's new position in the stream.
func (s *Store) Republished(ctx context.Context, id procfleet.TaskID, chunk int, sequence uint64) error {
	return s.change(ctx, id, "record as published again", republishedScript, chunk, sequence)
}

// Revisit reschedules visits. A visit that was settled is not added again.
func (s *Store) Revisit(ctx context.Context, next ...taskstore.NextVisit) error {
	calls := visitCalls{store: s, script: revisitScript}
	for _, v := range next {
		n, err := number(v.Task)
		if err != nil {
			return err
		}
		calls.add(n, min(v.After, taskstore.MaxVisit).Microseconds())
	}
	if err := calls.run(ctx); err != nil {
		return fmt.Errorf("set the next visits of %d tasks: %w", len(next), err)
	}
	return nil
}

// Settle removes visits from the sweep index.
func (s *Store) Settle(ctx context.Context, visits ...taskstore.Visit) error {
	calls := visitCalls{store: s, script: settleVisitsScript}
	for _, v := range visits {
		n, err := number(v.Task)
		switch {
		case err != nil: // an invalid id is not in the index
		case v.At.IsZero():
			calls.add(n, "")
		default:
			calls.add(n, v.At.UnixMicro())
		}
	}
	if err := calls.run(ctx); err != nil {
		return fmt.Errorf("settle %d visits: %w", len(visits), err)
	}
	return nil
}

// visitCalls collects the calls of one script that changes visits, one call per shard.
type visitCalls struct {
	store  *Store
	script *redis.Script
	calls  []*redisconn.Call
	open   [taskstore.SweepShards]*redisconn.Call
}

// add adds a visit, with the argument that the script expects after its number.
func (v *visitCalls) add(n procfleet.Number, arg any) {
	shard := taskstore.Shard(n)
	c := v.open[shard]
	if c == nil || len(c.Args) == 2*redisconn.ScriptItems {
		c = &redisconn.Call{Script: v.script, Keys: []string{v.store.keys.sweep(shard)}}
		v.open[shard], v.calls = c, append(v.calls, c)
	}
	c.Args = append(c.Args, int64(n), arg)
}

func (v *visitCalls) run(ctx context.Context) error {
	if len(v.calls) == 0 {
		return ctx.Err()
	}
	return v.store.conn.Run(ctx, v.calls...)
}

// Published records in one round trip that the finished event was published. It does
// not wait for a replica: if a fail-over loses the record, the event is published again
// with the same id.
func (s *Store) Published(ctx context.Context, id procfleet.TaskID) error {
	return s.change(ctx, id, "record event as published", publishedScript)
}

// Notified clears NotifyPending and removes finished tasks from the sweep index. A
// fail-over may have lost the end of a task; such a task stays in the index, because
// only the sweep can end it. In a cluster that loss may also happen later, see
// moveToNotifiedScript.
func (s *Store) Notified(ctx context.Context, ids ...procfleet.TaskID) error {
	numbers := make([]procfleet.Number, len(ids))
	for i, id := range ids {
		var err error
		if numbers[i], err = number(id); err != nil {
			return err
		}
	}
	record := s.clearAndSettle
	if _, apart := s.conn.Client().(*redis.ClusterClient); apart {
		record = s.clearThenSettle
	}
	if err := record(ctx, ids, numbers); err != nil {
		return fmt.Errorf("record %d tasks as notified: %w", len(ids), err)
	}
	return nil
}

func (s *Store) clearAndSettle(ctx context.Context, ids []procfleet.TaskID, numbers []procfleet.Number) error {
	var calls []*redisconn.Call
	for len(ids) > 0 {
		n := min(len(ids), redisconn.ScriptItems)
		c := &redisconn.Call{Script: notifiedScript}
		for i, id := range ids[:n] {
			c.Keys = append(c.Keys, s.keys.task(id).head(), s.keys.sweep(taskstore.Shard(numbers[i])))
			c.Args = append(c.Args, int64(numbers[i]))
		}
		calls, ids, numbers = append(calls, c), ids[n:], numbers[n:]
	}
	return s.conn.Run(ctx, calls...)
}

// clearThenSettle does the work of Notified in a cluster, where a task and the index
// are on different servers.
func (s *Store) clearThenSettle(ctx context.Context, ids []procfleet.TaskID, numbers []procfleet.Number) error {
	states := make([]*redis.StringCmd, len(ids))
	err := s.conn.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for i, id := range ids {
			pipe.HDel(ctx, s.keys.task(id).head(), "notify")
			states[i] = pipe.HGet(ctx, s.keys.task(id).head(), "state")
		}
	})
	if err != nil {
		return err
	}
	var calls []*redisconn.Call
	for i, state := range states {
		if procfleet.TaskState(state.Val()) == procfleet.TaskFinished {
			calls = append(calls, s.moveToNotified(ctx, numbers[i]))
		}
	}
	return s.conn.Run(ctx, calls...)
}
