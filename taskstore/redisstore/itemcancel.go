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
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// A stored cancel of items is a line: the seq and the time in microseconds, each followed by a
// space, the items separated by commas and followed by a space, and an [itemCancelText].
type itemCancelText struct {
	Mode   procfleet.CancelMode `json:"m"`
	Reason string               `json:"r,omitempty"`
}

// cancelItemsScript stores cancels of the open ones of given items.
//
// Keys, arguments and reply are those of [pauseScript], with an [itemCancelText] instead of the
// hold, and before it for each chunk its number and its items, separated by commas.
var cancelItemsScript = controlScript(`
if redis.call('HEXISTS', KEYS[1], 'cancel') == 1 then return 'ok' end
local about, directory = ARGV[#ARGV], redis.call('HGET', KEYS[1], 'directory')
local seq, set, chunks = (h[2] or 0) + 1, {}, 0
for at = 3 + ARGV[2], #ARGV - 1, 2 do
  local k, open = ARGV[at], {}
  local first, past = itemsOf(directory, k)
  if not past then return 'gone' end
  local marks = redis.call('GETRANGE', KEYS[2], first, past - 1)
  for i in string.gmatch(ARGV[at + 1], '%d+') do
    local mark = string.byte(marks, i + 1)
    if mark == 112 or mark == 100 or mark == 119 then open[#open + 1] = i end
  end
  local line = ' ' .. table.concat(open, ',') .. ' ' .. about .. '\n'
  local stored = redis.call('HGET', KEYS[1], 'cancels:' .. k)
  if #open > 0 and not (stored and string.find(stored, line, 1, true)) then
    set[#set + 1] = 'cancels:' .. k
    set[#set + 1] = (stored or '') .. seq .. ' ' .. text(now()) .. line
    if not stored then chunks = chunks + 1 end
  end
end
if #set == 0 then return 'ok' end
if other then return 'seq' end
for i = 1, #set, 2 do redis.call('HSET', KEYS[1], set[i], set[i + 1]) end
redis.call('HINCRBY', KEYS[1], 'cancels', chunks)
local canceled = cjson.decode(about)
note('items_cancelled', {c = canceled.m, r = canceled.r})
`)

// itemCancelsScript returns the cancels of items of a chunk.
//
// KEYS[1] head
// KEYS[2] marks
// KEYS[3] chunk
// ARGV[1] number of the chunk
// ARGV[2..] fields of the head to return; the first is the state
// Returns {cancels, first begun or "", marks, grants of a rollout, chunk, {fields}}, or {} if there are none.
var itemCancelsScript = redis.NewScript(luaItemsOf + `
local k = ARGV[1]
local h = redis.call('HMGET', KEYS[1], 'cancels:' .. k, 'begun:' .. k, 'directory', 'cancel', unpack(ARGV, 2))
if not h[1] or h[4] or h[5] == 'finished' or h[5] == 'rejected' then return {} end
local first, past = itemsOf(h[3], k)
local chunk = redis.call('GET', KEYS[3])
if not chunk then return {} end
return {h[1], h[2] or '', redis.call('GETRANGE', KEYS[2], first, past - 1), redis.call('HGET', KEYS[1], 'grants:' .. k) or '', chunk, {unpack(h, 5, 3 + #ARGV)}}
`)

// itemsCanceledScript removes cancels of items that were carried out.
//
// KEYS[1] head
// ARGV[1] number of the chunk
// ARGV[2] highest seq
// Returns 1, or 0 if there is no such task.
var itemsCanceledScript = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local field = 'cancels:' .. ARGV[1]
local stored = redis.call('HGET', KEYS[1], field)
if not stored then return 1 end
local left = ''
for line in string.gmatch(stored, '[^\n]+\n') do
  if tonumber(string.match(line, '^%d+')) > tonumber(ARGV[2]) then left = left .. line end
end
if left ~= '' then
  redis.call('HSET', KEYS[1], field, left)
  return 1
end
redis.call('HDEL', KEYS[1], field)
redis.call('HINCRBY', KEYS[1], 'cancels', -1)
return 1
`)

// CancelItems stores cancels of items, in one round trip.
func (s *Store) CancelItems(ctx context.Context, id procfleet.TaskID, items []taskstore.ChunkItems, mode procfleet.CancelMode, reason string, seq int) (procfleet.Task, error) {
	text, err := json.Marshal(itemCancelText{Mode: mode, Reason: reason})
	if err != nil {
		return procfleet.Task{}, fmt.Errorf("cancel items of task %s: %w", id, err)
	}
	var more []any
	for _, of := range items {
		numbers := make([]string, len(of.Items))
		for n, i := range of.Items {
			numbers[n] = strconv.Itoa(i)
		}
		more = append(more, of.Chunk, strings.Join(numbers, ","))
	}
	return s.control(ctx, id, "cancel items of", cancelItemsScript, seq, append(more, text)...)
}

// ItemCancels returns the cancels of a chunk's items, in one round trip.
func (s *Store) ItemCancels(ctx context.Context, id procfleet.TaskID, chunk int) (taskstore.CanceledItems, error) {
	if _, err := number(id); err != nil || chunk < 0 {
		return taskstore.CanceledItems{}, nil //nolint:nilerr // an invalid id belongs to no task
	}
	keys := s.keys.task(id)
	c := &redisconn.Call{Script: itemCancelsScript, Keys: []string{keys.head(), keys.marks(), keys.chunk(chunk)}, Args: []any{chunk}}
	for _, f := range taskFields() {
		c.Args = append(c.Args, f)
	}
	if err := s.conn.Run(ctx, c); err != nil {
		return taskstore.CanceledItems{}, fmt.Errorf("read cancels of chunk %d of task %s: %w", chunk, id, err)
	}
	canceled, err := readCanceledItems(id, c.Cmd)
	if err != nil {
		err = fmt.Errorf("read cancels of chunk %d of task %s: %w", chunk, id, err)
	}
	return canceled, err
}

func readCanceledItems(id procfleet.TaskID, cmd *redis.Cmd) (c taskstore.CanceledItems, err error) {
	values, err := cmd.Slice()
	if err != nil || len(values) == 0 {
		return c, err
	}
	h := head{values: values}
	if c.Cancels, err = readItemCancels(h.text()); err != nil {
		return c, err
	}
	c.FirstBegun = redisconn.Moment(h.int())
	marks := []byte(h.text())
	c.Open, c.Unsent = pack.Canceled(marks, readGrants(h.text()))
	if c.Chunk, err = pack.ReadChunk(h.text()); err != nil {
		return c, err
	}
	fields, _ := values[len(values)-1].([]any)
	if c.Task, err = readHead(id, fields); c.Task.Rollout == nil {
		c.Unsent = nil
	}
	return c, err
}

// readGrants parses the grants of a chunk, see [advanceScript].
func readGrants(text string) (grants []taskstore.Grant) {
	for line := range strings.Lines(text) {
		var at [4]int64
		for i, number := range strings.Fields(line) {
			at[min(i, 3)], _ = strconv.ParseInt(number, 10, 64) // only scripts write these numbers
		}
		grants = append(grants, taskstore.Grant{Upto: int(at[0]), At: redisconn.Moment(at[1]), Deadline: redisconn.Moment(at[2]), Begun: redisconn.Moment(at[3])})
	}
	return grants
}

func readItemCancels(text string) ([]taskstore.ItemCancel, error) {
	var cancels []taskstore.ItemCancel
	for line := range strings.Lines(text) {
		parts := strings.SplitN(line, " ", 4)
		if len(parts) < 4 {
			return nil, fmt.Errorf("%w: cancel of items %q", redisconn.ErrDamaged, line)
		}
		var about itemCancelText
		if err := json.Unmarshal([]byte(parts[3]), &about); err != nil {
			return nil, fmt.Errorf("%w: cancel of items: %w", redisconn.ErrDamaged, err)
		}
		seq, _ := strconv.Atoi(parts[0]) // only the script writes these numbers
		since, _ := strconv.ParseInt(parts[1], 10, 64)
		c := taskstore.ItemCancel{Seq: seq, Mode: about.Mode, Reason: about.Reason, Since: redisconn.Moment(since)}
		for number := range strings.SplitSeq(parts[2], ",") {
			i, _ := strconv.Atoi(number)
			c.Items = append(c.Items, i)
		}
		cancels = append(cancels, c)
	}
	return cancels, nil
}

// ItemsCanceled removes cancels that were carried out, in one round trip.
func (s *Store) ItemsCanceled(ctx context.Context, id procfleet.TaskID, chunk, seq int) error {
	if _, err := number(id); err != nil {
		return err
	}
	c := &redisconn.Call{Script: itemsCanceledScript, Keys: []string{s.keys.task(id).head()}, Args: []any{chunk, seq}}
	if err := s.conn.Run(ctx, c); err != nil {
		return fmt.Errorf("record cancels of task %s: %w", id, err)
	}
	if n, err := c.Number(); err != nil || n == 0 {
		return fmt.Errorf("record cancels of task %s: %w", id, missing(err))
	}
	return nil
}
