package redisstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// luaItemsOf finds in a [directory] the first item of chunk k and the first
// that is past it; the latter is nil if there is no such chunk.
const luaItemsOf = `
local function itemsOf(directory, k)
  local at = k * 8
  return tonumber(string.sub(directory, at + 1, at + 8)), tonumber(string.sub(directory, at + 9, at + 16))
end
`

// beginScript is the gate of delivery. It judges by the clock of the server
// that has the task, and opens with all that a worker needs.
//
// KEYS[1] head
// KEYS[2] marks
// KEYS[3] chunk
// ARGV[1] number of the chunk
// ARGV[2..] fields of the head to return
// Returns {gate, now} or {"open", now, first begun, marks, chunk, {fields}}.
var beginScript = redis.NewScript(luaNow + luaItemsOf + `
local k, time = ARGV[1], now()
local h = redis.call('HMGET', KEYS[1], 'state', 'deadline', 'directory', 'done:' .. k)
if not h[1] then return {'gone', text(time)} end
local first, past = itemsOf(h[3], k)
if not past then return {'gone', text(time)} end
if h[1] == 'rejected' then return {'rejected', text(time)} end
local marks = redis.call('GETRANGE', KEYS[2], first, past - 1)
if h[4] or not string.find(marks, '[pd]') then return {'finished', text(time)} end
if time >= tonumber(h[2]) then return {'overdue', text(time)} end
local chunk = redis.call('GET', KEYS[3])
if not chunk then return {'gone', text(time)} end
if h[1] == 'accepted' then redis.call('HSET', KEYS[1], 'state', 'running') end
redis.call('HSETNX', KEYS[1], 'begun:' .. k, text(time))
local begun = redis.call('HGET', KEYS[1], 'begun:' .. k)
return {'open', text(time), begun, marks, chunk, redis.call('HMGET', KEYS[1], unpack(ARGV, 2))}
`)

// luaWriteMarks writes marks back in runs: marks that are close to each other
// go out in one piece, with what is between them as it was read.
//
// key is the string, base the place in it where old was read; places are the
// changed places in old, counted from 1 and ascending, and bytes their marks.
const luaWriteMarks = `
local function writeMarks(key, base, old, places, bytes)
  local i, n = 1, #places
  while i <= n do
    local piece, j = {bytes[i]}, i
    while j < n and places[j + 1] - places[j] <= 128 do
      if places[j + 1] > places[j] + 1 then
        piece[#piece + 1] = string.sub(old, places[j] + 1, places[j + 1] - 1)
      end
      j = j + 1
      piece[#piece + 1] = bytes[j]
    end
    redis.call('SETRANGE', key, base + places[i] - 1, table.concat(piece))
    i = j + 1
  end
end
`

// deliveredScript moves items from pending to delivered.
//
// KEYS[1] head
// KEYS[2] marks
// ARGV[1] number of the chunk
// ARGV[2] "done" if the chunk needs no further delivery
// ARGV[3..] items, ascending and each once
// Returns 1, or 0 if there is no such task.
var deliveredScript = redis.NewScript(luaItemsOf + luaWriteMarks + `
local h = redis.call('HMGET', KEYS[1], 'state', 'directory')
if not h[1] then return 0 end
local first, past = itemsOf(h[2], ARGV[1])
if not past then return 1 end
if ARGV[2] == 'done' then redis.call('HSET', KEYS[1], 'done:' .. ARGV[1], 1) end
if #ARGV < 3 then return 1 end
local old = redis.call('GETRANGE', KEYS[2], first, past - 1)
local places, bytes = {}, {}
for i = 3, #ARGV do
  local place = ARGV[i] - first + 1
  if place > 0 and string.byte(old, place) == 112 then
    places[#places + 1] = place
    bytes[#bytes + 1] = 'd'
  end
end
if #places == 0 then return 1 end
writeMarks(KEYS[2], first, old, places, bytes)
redis.call('HINCRBY', KEYS[1], 'n:p', -#places)
redis.call('HINCRBY', KEYS[1], 'n:d', #places)
if h[1] == 'accepted' then redis.call('HSET', KEYS[1], 'state', 'running') end
return 1
`)

// Begin is one round trip.
func (s *Store) Begin(ctx context.Context, id procfleet.TaskID, chunk int) (taskstore.Begun, error) {
	if _, err := number(id); err != nil || chunk < 0 {
		now, err := s.Now(ctx)
		return taskstore.Begun{Gate: taskstore.GateGone, Now: now}, err
	}
	keys := s.keys.task(id)
	c := &call{
		script: beginScript,
		keys:   []string{keys.head(), keys.marks(), keys.chunk(chunk)},
		args:   []any{chunk},
	}
	for _, f := range taskFields() {
		c.args = append(c.args, f)
	}
	if err := s.run(ctx, c); err != nil {
		return taskstore.Begun{}, fmt.Errorf("begin chunk %d of task %s: %w", chunk, id, err)
	}
	b, err := readBegun(id, c.cmd)
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
	b := taskstore.Begun{Gate: taskstore.Gate(h.text()), Now: moment(h.int())}
	if b.Gate != taskstore.GateOpen {
		return b, nil
	}
	b.FirstBegun = moment(h.int())
	b.Open, b.Delivered = pack.OpenItems([]byte(h.text()))
	if b.Chunk, err = pack.ReadChunk([]byte(h.text())); err != nil {
		return taskstore.Begun{}, err
	}
	fields, ok := values[len(values)-1].([]any)
	if !ok {
		return taskstore.Begun{}, fmt.Errorf("%w: answer of begin", errDamaged)
	}
	b.Task, err = readHead(id, fields)
	return b, err
}

// Delivered is one round trip.
func (s *Store) Delivered(ctx context.Context, id procfleet.TaskID, chunk int, items []int, done bool) error {
	if _, err := number(id); err != nil {
		return err
	}
	if chunk < 0 {
		return fmt.Errorf("note items of task %s as delivered: %w: chunk %d", id, taskstore.ErrNotFound, chunk)
	}
	keys := s.keys.task(id)
	c := &call{script: deliveredScript, keys: []string{keys.head(), keys.marks()}, args: []any{chunk, ""}}
	if done {
		c.args[1] = "done"
	}
	for _, i := range slices.Compact(slices.Sorted(slices.Values(items))) {
		c.args = append(c.args, i)
	}
	if err := s.run(ctx, c); err != nil {
		return fmt.Errorf("note items of task %s as delivered: %w", id, err)
	}
	if n, err := c.number(); err != nil || n == 0 {
		return fmt.Errorf("note items of task %s as delivered: %w", id, missing(err))
	}
	return nil
}
