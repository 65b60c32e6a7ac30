package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

// pauseScript holds an open task.
//
// KEYS[1] head
// KEYS[2] marks
// ARGV[1] expected seq, or "" for any
// ARGV[2] number of the following fields
// ARGV[3..] fields of the head to return, then the stored hold without its time
// Returns {outcome, {fields}}: "ok" also if the task was held before, "seq", "done" or
// "gone".
var pauseScript = controlScript(`
if h[3] then return 'ok' end
if other then return 'seq' end
redis.call('HSET', KEYS[1], 'hold', text(now()) .. ' ' .. ARGV[#ARGV])
local hold = cjson.decode(ARGV[#ARGV])
note('held', {h = hold.k, r = hold.r})
`)

// resumeScript ends the hold of a task and moves its deadline by the time of the hold.
//
// Keys, arguments and reply are those of [pauseScript], without the hold.
var resumeScript = controlScript(`
if not h[3] then return 'ok' end
if other then return 'seq' end
moveGrants(endHold())
note('resumed', {h = 'operator'})
`)

// cancelScript cancels a task and ends the items of the chunks that were never begun. The
// other chunks are not done again.
//
// Keys, arguments and reply are those of [pauseScript], with the mode and the reason
// instead of the hold.
var cancelScript = controlScript(`
local mode = ARGV[#ARGV - 1]
local given = redis.call('HGET', KEYS[1], 'cancel')
if given and (mode == 'drain' or string.match(given, '^%d+ (%a+)') ~= 'drain') then return 'ok' end
if other then return 'seq' end
endHold()
local since = given and string.match(given, '^%d+') or text(now())
local rollout = redis.call('HGET', KEYS[1], 'release')
local r = rollout and cjson.decode(rollout)
local set = {'state', 'running', 'cancel', since .. ' ' .. mode .. ' ' .. ARGV[#ARGV], 'cancels', 0}
local c = redis.call('HMGET', KEYS[1], 'chunks', 'directory', 'n:p', 'n:d', 'n:c')
local ended = 0

-- cancelWaiting ends the waiting items of a chunk that were never sent. The others are requested
-- from their agents, as all items that were sent.
local function cancelWaiting(k, first, granted)
  local marks = redis.call('GETRANGE', KEYS[2], first, first + granted - 1)
  if not string.find(marks, 'w') then return end
  local f, from, out = redis.call('HMGET', KEYS[1], 'grants:' .. k, 'units:' .. k, 'zone:' .. k), 0, ''
  for upto, begun in string.gmatch(f[1], '(%d+) %d+ %d+ (%d+)\n') do
    while from < tonumber(upto) do
      local stop = unitEnd(f[2], from)
      local unit, n = string.gsub(string.sub(marks, from + 1, stop), 'w', begun == '0' and 'c' or 'p')
      if n > 0 then
        r.q = r.q - 1
        if begun == '0' then ended = ended + n else activate(r, f[3], 1) end
      end
      from, out = stop, out .. unit
    end
  end
  redis.call('SETRANGE', KEYS[2], first, out)
end

for k = 0, c[1] - 1 do
  local of = redis.call('HMGET', KEYS[1], 'begun:' .. k, 'granted:' .. k)
  redis.call('HDEL', KEYS[1], 'cancels:' .. k, 'done:' .. k)
  local first, past = itemsOf(c[2], k)
  if rollout and of[2] then cancelWaiting(k, first, of[2]) end
  if rollout then first = first + (of[2] or 0) elseif of[1] then first = past end
  if first < past then
    local marks, n = string.gsub(redis.call('GETRANGE', KEYS[2], first, past - 1), 'p', 'c')
    if n > 0 then redis.call('SETRANGE', KEYS[2], first, marks) end
    ended = ended + n
  end
end
if rollout then
  r.h, r.ht = nil, nil
  saveRelease(r)
end
local pending = c[3] - ended
for _, v in ipairs({'n:p', pending, 'n:c', (c[5] or 0) + ended}) do set[#set + 1] = v end
if pending + (c[4] or 0) == 0 then
  for _, v in ipairs({'state', 'finished', 'finished', text(now()), 'notify', 1}) do set[#set + 1] = v end
end
redis.call('HSET', KEYS[1], unpack(set))
note('cancelled', {c = mode, r = ARGV[#ARGV]})
`)

// controlScript returns a script that applies a transition to an open task. transition is
// the body of a function that returns the outcome if it notes no transition. It reads the
// head h (state, seq, hold, deadline, expires); other is true if the caller expects
// another seq.
func controlScript(transition string) *redis.Script {
	return redis.NewScript(redisconn.LuaNow + luaItemsOf + luaNote + luaRollout + `
local h = redis.call('HMGET', KEYS[1], 'state', 'seq', 'hold', 'deadline', 'expires')
local other = ARGV[1] ~= '' and tonumber(ARGV[1]) ~= tonumber(h[2] or 0)
local function endHold()
  if not h[3] then return 0 end
  local held = math.max(0, now() - tonumber(string.match(h[3], '^%d+')))
  redis.call('HSET', KEYS[1], 'deadline', text(math.min(h[4] + held, tonumber(h[5]))))
  redis.call('HDEL', KEYS[1], 'hold')
  return held
end
-- moveGrants moves the deadlines of the grants of a rollout with open items.
local function moveGrants(held)
  local c = redis.call('HMGET', KEYS[1], 'release', 'directory', 'chunks')
  if not c[1] then return end
  for k = 0, c[3] - 1 do
    local g = redis.call('HMGET', KEYS[1], 'grants:' .. k, 'granted:' .. k)
    local first = itemsOf(c[2], k)
    if g[1] and string.find(redis.call('GETRANGE', KEYS[2], first, first + g[2] - 1), '[pd]') then
      local moved = string.gsub(g[1], '(%d+)( %d+\n)', function(deadline, begun) return text(deadline + held) .. begun end)
      redis.call('HSET', KEYS[1], 'grants:' .. k, moved)
    end
  end
  local r = cjson.decode(c[1])
  r.m = text(now())
  saveRelease(r)
end
local function transition()
  if not h[1] then return 'gone' end
  if h[1] == 'finished' or h[1] == 'rejected' then return 'done' end
  ` + transition + `
  return 'ok'
end
local outcome = transition()
return {outcome, redis.call('HMGET', KEYS[1], unpack(ARGV, 3, 2 + ARGV[2]))}
`)
}

// Pause holds an open task, in one round trip.
func (s *Store) Pause(ctx context.Context, id procfleet.TaskID, reason string, seq int) (procfleet.Task, error) {
	hold, err := json.Marshal(storedHold{Kind: procfleet.HoldOperator, Reason: reason})
	if err != nil {
		return procfleet.Task{}, fmt.Errorf("pause task %s: %w", id, err)
	}
	return s.control(ctx, id, "pause", pauseScript, seq, hold)
}

// Resume ends the hold of a task, in one round trip.
func (s *Store) Resume(ctx context.Context, id procfleet.TaskID, seq int) (procfleet.Task, error) {
	return s.control(ctx, id, "resume", resumeScript, seq)
}

// Cancel cancels a task, in one round trip.
func (s *Store) Cancel(ctx context.Context, id procfleet.TaskID, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	return s.control(ctx, id, "cancel", cancelScript, seq, string(mode), reason)
}

// control runs a script of [controlScript]. It waits for replicas: a fail-over must not
// resume a task whose pause was confirmed.
func (s *Store) control(ctx context.Context, id procfleet.TaskID, what string, script *redis.Script, seq int, more ...any) (procfleet.Task, error) {
	if _, err := number(id); err != nil {
		return procfleet.Task{}, err
	}
	keys, fields := s.keys.task(id), taskFields()
	c := &redisconn.Call{Script: script, Keys: []string{keys.head(), keys.marks()}, Args: []any{"", len(fields)}}
	if seq != taskstore.AnySeq {
		c.Args[0] = seq
	}
	for _, f := range fields {
		c.Args = append(c.Args, f)
	}
	c.Args = append(c.Args, more...)
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return procfleet.Task{}, fmt.Errorf("%s task %s: %w", what, id, err)
	}
	task, err := readControlled(id, c.Cmd)
	if err != nil {
		err = fmt.Errorf("%s task %s: %w", what, id, err)
	}
	return task, err
}

func readControlled(id procfleet.TaskID, cmd *redis.Cmd) (procfleet.Task, error) {
	reply, err := cmd.Slice()
	if err != nil || len(reply) != 2 {
		return procfleet.Task{}, fmt.Errorf("%w: reply to a control call: %w", redisconn.ErrDamaged, err)
	}
	fields, _ := reply[1].([]any)
	task, err := readHead(id, fields)
	if err != nil {
		return procfleet.Task{}, err
	}
	switch reply[0] {
	case "gone":
		return task, taskstore.ErrNotFound
	case "seq":
		return task, taskstore.ErrSeq
	case "done":
		return task, taskstore.ErrDone
	case "failures":
		return task, taskstore.ErrFailures
	}
	return task, nil
}

// storedHold is the stored form of a [procfleet.Hold], preceded by its time in
// microseconds and a space.
type storedHold struct {
	Kind   procfleet.HoldKind `json:"k"`
	Reason string             `json:"r,omitempty"`
}

// readHold parses a stored hold. An unreadable one still holds the task.
func readHold(text string) procfleet.Hold {
	if text == "" {
		return procfleet.Hold{}
	}
	micros, rest, _ := strings.Cut(text, " ")
	since, _ := strconv.ParseInt(micros, 10, 64)
	h := storedHold{Kind: procfleet.HoldOperator}
	_ = json.Unmarshal([]byte(rest), &h)
	return procfleet.Hold{Kind: h.Kind, Reason: h.Reason, Since: redisconn.Moment(since)}
}

// readCancel parses a stored cancellation: its time in microseconds, its mode and its reason,
// separated by spaces.
func readCancel(text string) procfleet.Cancel {
	if text == "" {
		return procfleet.Cancel{}
	}
	micros, rest, _ := strings.Cut(text, " ")
	mode, reason, _ := strings.Cut(rest, " ")
	since, _ := strconv.ParseInt(micros, 10, 64)
	return procfleet.Cancel{Mode: procfleet.CancelMode(mode), Reason: reason, Since: redisconn.Moment(since)}
}

// retriedScript adds a retry to a task.
//
// KEYS[1] head
// ARGV[1] id of the retry
// ARGV[2] number of the following fields
// ARGV[3..] fields of the head to return
// Returns {"ok" or "gone", {fields}}.
var retriedScript = redis.NewScript(`
local h = redis.call('HMGET', KEYS[1], 'state', 'retried')
if h[1] and not string.find(' ' .. (h[2] or '') .. ' ', ' ' .. ARGV[1] .. ' ', 1, true) then
  redis.call('HSET', KEYS[1], 'retried', h[2] and h[2] .. ' ' .. ARGV[1] or ARGV[1])
  redis.call('HINCRBY', KEYS[1], 'seq', 1)
end
return {h[1] and 'ok' or 'gone', redis.call('HMGET', KEYS[1], unpack(ARGV, 3, 2 + ARGV[2]))}
`)

// revertedScript sets the task that reverts a task, unless there is one.
//
// Keys, arguments and reply are those of [retriedScript], with the id of the reverting task.
var revertedScript = redis.NewScript(`
local state = redis.call('HGET', KEYS[1], 'state')
if state and redis.call('HSETNX', KEYS[1], 'undone', ARGV[1]) == 1 then redis.call('HINCRBY', KEYS[1], 'seq', 1) end
return {state and 'ok' or 'gone', redis.call('HMGET', KEYS[1], unpack(ARGV, 3, 2 + ARGV[2]))}
`)

// Retried adds a retry to a task, in one round trip.
func (s *Store) Retried(ctx context.Context, id, retry procfleet.TaskID) (procfleet.Task, error) {
	return s.link(ctx, id, "add a retry to", retriedScript, retry)
}

// LinkUndo sets the task that reverts a task, in one round trip.
func (s *Store) LinkUndo(ctx context.Context, id, undo procfleet.TaskID) (procfleet.Task, error) {
	return s.link(ctx, id, "link the undo of", revertedScript, undo)
}

func (s *Store) link(ctx context.Context, id procfleet.TaskID, doing string, script *redis.Script, other procfleet.TaskID) (procfleet.Task, error) {
	if _, err := number(id); err != nil {
		return procfleet.Task{}, err
	}
	fields := taskFields()
	c := &redisconn.Call{Script: script, Keys: []string{s.keys.task(id).head()}, Args: []any{string(other), len(fields)}}
	for _, f := range fields {
		c.Args = append(c.Args, f)
	}
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return procfleet.Task{}, fmt.Errorf("%s task %s: %w", doing, id, err)
	}
	task, err := readControlled(id, c.Cmd)
	if err != nil {
		err = fmt.Errorf("%s task %s: %w", doing, id, err)
	}
	return task, err
}

func readRetries(text string) (retries []procfleet.TaskID) {
	for id := range strings.FieldsSeq(text) {
		retries = append(retries, procfleet.TaskID(id))
	}
	return retries
}
