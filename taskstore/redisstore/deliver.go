package redisstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// luaItemsOf finds the items of chunk k in a [directory]: the index of its first item,
// and the index after its last item, or nil if there is no such chunk.
const luaItemsOf = `
local function itemsOf(directory, k)
  local at = k * 8
  return tonumber(string.sub(directory, at + 1, at + 8)), tonumber(string.sub(directory, at + 9, at + 16))
end
`

// beginScript decides whether a chunk, or a grant of it, may be delivered, by the clock of the
// server that stores the task. If it may, the script also returns the data that a worker needs.
//
// KEYS[1] head
// KEYS[2] marks
// KEYS[3] chunk
// ARGV[1] number of the chunk
// ARGV[2] end of the grant of a rollout, or 0 for all items
// ARGV[3..] fields of the head to return; the first is the state
// Returns {gate, now} or {"open" or "canceled", now, first begun, deadline, first item of the grant,
// marks, cancels of items, chunk, {fields}}.
var beginScript = redis.NewScript(redisconn.LuaNow + luaItemsOf + `
local k, upto, time = ARGV[1], tonumber(ARGV[2]), text(now())
local h = redis.call('HMGET', KEYS[1], 'begun:' .. k, 'done:' .. k, 'directory', 'deadline', 'hold', 'cancel', 'cancels:' .. k, 'release', unpack(ARGV, 3))
local begun, deadline, rollout, state = h[1], h[4], h[8], h[9]
if not state then return {'gone', time} end
local first, past = itemsOf(h[3], k)
if not past then return {'gone', time} end
if state == 'rejected' then return {'rejected', time} end
local from, to, done, grants, grant = 0, past - first, h[2], nil, nil
if rollout then
  grants = redis.call('HGET', KEYS[1], 'grants:' .. k) or ''
  done, to = done and h[6], 0
  for past, ends, began in string.gmatch(grants, '(%d+) %d+ (%d+) (%d+)\n') do
    if not grant then from = upto > 0 and to or 0 end
    to = tonumber(past)
    if to == upto then
      grant, begun = true, began ~= '0' and began
      if tonumber(ends) < tonumber(deadline) then deadline = ends end
      break
    end
  end
  if upto > 0 and not grant then from, to = 0, 0 end
end
local marks = to > from and redis.call('GETRANGE', KEYS[2], first + from, first + to - 1) or ''
if done or not string.find(marks, '[pd]') then return {'finished', time} end
if h[5] then return {'held', time} end
if tonumber(time) >= tonumber(h[6] and h[4] or deadline) then return {'overdue', time} end
local chunk = redis.call('GET', KEYS[3])
if not chunk then return {'gone', time} end
if not begun and not h[6] then
  begun = time
  if state == 'accepted' then h[9] = 'running' end
  redis.call('HSET', KEYS[1], 'state', h[9], 'begun:' .. k, h[1] or begun)
  if grant then
    grants = string.gsub('\n' .. grants, '(\n' .. upto .. ' %d+ %d+) 0\n', '%1 ' .. begun .. '\n')
    redis.call('HSET', KEYS[1], 'grants:' .. k, string.sub(grants, 2))
  end
end
return {h[6] and 'canceled' or 'open', time, begun or '', deadline, tostring(from), marks, h[7] or '', chunk, {unpack(h, 9, 6 + #ARGV)}}
`)

// luaWriteMarks writes changed marks. It writes marks that are close to each other with
// a single SETRANGE, together with the unchanged marks between them.
//
// key is the string with the marks, and base the offset at which old was read.
// positions are the changed positions in old, ascending from 1, and bytes their new
// marks.
const luaWriteMarks = `
local function writeMarks(key, base, old, positions, bytes)
  local i, n = 1, #positions
  while i <= n do
    local piece, j = {bytes[i]}, i
    while j < n and positions[j + 1] - positions[j] <= 128 do
      if positions[j + 1] > positions[j] + 1 then
        piece[#piece + 1] = string.sub(old, positions[j] + 1, positions[j + 1] - 1)
      end
      j = j + 1
      piece[#piece + 1] = bytes[j]
    end
    redis.call('SETRANGE', key, base + positions[i] - 1, table.concat(piece))
    i = j + 1
  end
end
`

// deliveredScript changes items from pending to delivered.
//
// KEYS[1] head
// KEYS[2] marks
// ARGV[1] number of the chunk
// ARGV[2] "done" if the chunk needs no further delivery
// ARGV[3..] items, ascending and without duplicates
// Returns 1, or 0 if there is no such task.
var deliveredScript = redis.NewScript(luaItemsOf + luaWriteMarks + `
local h = redis.call('HMGET', KEYS[1], 'state', 'directory', 'n:p', 'n:d')
if not h[1] then return 0 end
local first, past = itemsOf(h[2], ARGV[1])
if not past then return 1 end
local set = {}
if ARGV[2] == 'done' then set = {'done:' .. ARGV[1], 1} end
local old = #ARGV > 2 and redis.call('GETRANGE', KEYS[2], first, past - 1) or ''
local positions, bytes = {}, {}
for i = 3, #ARGV do
  local position = ARGV[i] - first + 1
  if position > 0 and string.byte(old, position) == 112 then
    positions[#positions + 1] = position
    bytes[#bytes + 1] = 'd'
  end
end
if #positions > 0 then
  writeMarks(KEYS[2], first, old, positions, bytes)
  if h[1] == 'accepted' then h[1] = 'running' end
  for _, v in ipairs({'state', h[1], 'n:p', h[3] - #positions, 'n:d', (h[4] or 0) + #positions}) do set[#set + 1] = v end
end
if #set > 0 then redis.call('HSET', KEYS[1], unpack(set)) end
return 1
`)

// Begin decides whether a chunk may be delivered, in one round trip.
func (s *Store) Begin(ctx context.Context, id procfleet.TaskID, chunk, upto int) (taskstore.Begun, error) {
	if _, err := number(id); err != nil || chunk < 0 {
		now, err := s.conn.Now(ctx)
		return taskstore.Begun{Gate: taskstore.GateGone, Now: now}, err
	}
	keys := s.keys.task(id)
	c := &redisconn.Call{
		Script: beginScript,
		Keys:   []string{keys.head(), keys.marks(), keys.chunk(chunk)},
		Args:   []any{chunk, upto},
	}
	for _, f := range taskFields() {
		c.Args = append(c.Args, f)
	}
	if err := s.conn.Run(ctx, c); err != nil {
		return taskstore.Begun{}, fmt.Errorf("begin chunk %d of task %s: %w", chunk, id, err)
	}
	b, err := readBegun(id, c.Cmd)
	if err != nil {
		return taskstore.Begun{}, fmt.Errorf("begin chunk %d of task %s: %w", chunk, id, err)
	}
	return b, nil
}

func readBegun(id procfleet.TaskID, cmd *redis.Cmd) (taskstore.Begun, error) {
	values, err := cmd.Slice()
	if err != nil {
		return taskstore.Begun{}, err
	}
	h := head{values: values}
	b := taskstore.Begun{Gate: taskstore.Gate(h.text()), Now: redisconn.Moment(h.int())}
	if b.Gate != taskstore.GateOpen && b.Gate != taskstore.GateCanceled {
		return b, nil
	}
	b.FirstBegun, b.Deadline = redisconn.Moment(h.int()), redisconn.Moment(h.int())
	from := int(h.int())
	b.Open, b.Delivered = pack.OpenItemsFrom([]byte(h.text()), from)
	cancels, err := readItemCancels(h.text())
	if err != nil {
		return taskstore.Begun{}, err
	}
	b.Open, b.Delivered = pack.Remaining(b.Open, cancels), pack.Remaining(b.Delivered, cancels)
	if b.Chunk, err = pack.ReadChunk(h.text()); err != nil {
		return taskstore.Begun{}, err
	}
	fields, ok := values[len(values)-1].([]any)
	if !ok {
		return taskstore.Begun{}, fmt.Errorf("%w: answer of begin", redisconn.ErrDamaged)
	}
	b.Task, err = readHead(id, fields)
	return b, err
}

// Delivered marks items as delivered, in one round trip.
func (s *Store) Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error {
	if _, err := number(id); err != nil {
		return err
	}
	if chunk < 0 {
		return fmt.Errorf("record items of task %s as delivered: %w: chunk %d", id, taskstore.ErrNotFound, chunk)
	}
	keys := s.keys.task(id)
	c := &redisconn.Call{Script: deliveredScript, Keys: []string{keys.head(), keys.marks()}, Args: []any{chunk, ""}}
	if done {
		c.Args[1] = "done"
	}
	for _, i := range slices.Compact(slices.Sorted(slices.Values(items))) {
		c.Args = append(c.Args, i)
	}
	if err := s.conn.Run(ctx, c); err != nil {
		return fmt.Errorf("record items of task %s as delivered: %w", id, err)
	}
	if n, err := c.Number(); err != nil || n == 0 {
		return fmt.Errorf("record items of task %s as delivered: %w", id, missing(err))
	}
	return nil
}
