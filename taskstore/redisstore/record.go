package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// A stored result begins with one of these letters, followed by the output of
// [pack.Result]. Only the script can decide whether a result is late.
const (
	inTime = "-"
	late   = "+"
)

// recordScript applies results by rank. The marks decide whether a result applies. For
// each block of results the script reads the marks once, writes the results that apply
// with one HSET, and writes the changed marks in runs. This costs far less than one
// command per result.
//
// The head stores the token of the call that completed the task. If the reply to that
// call is lost, the repeated call applies nothing but still reports that it completed
// the task.
//
// KEYS[1] head
// KEYS[2] marks
// KEYS[3..] blocks of results
// ARGV[1] marks of the results, ascending by item
// ARGV[2] their ranks, one digit each
// ARGV[3] number of items in a block
// ARGV[4] token of the call
// ARGV[5..] for each block: the number of its first item, the number of results, and
// for each result its item and its stored form, marked as not late
// Returns {1 if the task exists, number of results applied, 1 if this call completed
// the task, 1 if it ended a unit of a rollout}.
var recordScript = redis.NewScript(redisconn.LuaNow + luaItemsOf + luaWriteMarks + luaNote + luaRollout + luaCounters() + `
local h = redis.call('HMGET', KEYS[1], 'state', 'expires', 'completer', 'release', 'cancel', unpack(counters))
if not h[1] then return {0, 0, 0, 0} end
if h[1] == 'rejected' then return {1, 0, 0, 0} end
local rollout, was = h[4], {}
local newMarks, ranks, size = ARGV[1], ARGV[2], tonumber(ARGV[3])
local byte, sub = string.byte, string.sub
local delta, applied, at, n = {}, 0, 5, 0
local function tally(mark, change)
  if mark < 97 then mark = mark + 32 end
  -- superseded items count as failed, expired ones as unreachable, and waiting ones as pending
  mark = ({[118] = 102, [101] = 120, [119] = 112})[mark] or mark
  delta[mark] = (delta[mark] or 0) + change
end

for k = 3, #KEYS do
  local base, count = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local old = redis.call('GETRANGE', KEYS[2], base, base + size - 1)
  local put, positions, bytes = {}, {}, {}
  local lastPosition, lastMark
  at = at + 2
  for i = 1, count do
    n = n + 1
    local item, value = ARGV[at], ARGV[at + 1]
    at = at + 2
    local position = item - base + 1
    local mark = position == lastPosition and lastMark or byte(old, position)
    local rank = 2
    if mark == 112 or mark == 100 or mark == 119 then rank = 0 elseif mark and mark < 97 then rank = 1 end
    if mark and byte(ranks, n) - 48 > rank then
      local new = byte(newMarks, n)
      if rank > 0 then value = '+' .. sub(value, 2) end
      put[#put + 1] = item
      put[#put + 1] = value
      if position ~= lastPosition then positions[#positions + 1] = position end
      bytes[#positions] = sub(newMarks, n, n)
      tally(mark, -1)
      lastPosition, lastMark = position, new
      tally(new, 1)
      applied = applied + 1
      if rollout and not was[tonumber(item)] then was[tonumber(item)] = sub(old, position, position) end
    end
  end
  if #put > 0 then
    redis.call('HSET', KEYS[k], unpack(put))
    redis.call('PEXPIREAT', KEYS[k], math.floor(h[2] / 1000))
    writeMarks(KEYS[2], base, old, positions, bytes)
  end
end

if applied == 0 then return {1, 0, h[3] == ARGV[4] and 1 or 0, 0} end
local set, open = {}, 0
for i, counter in ipairs(counters) do
  local mark = byte(counter, 3)
  local count = (h[i + 5] or 0) + (delta[mark] or 0)
  if mark == 112 or mark == 100 then open = open + count end
  if delta[mark] then
    set[#set + 1] = counter
    set[#set + 1] = count
  end
end
local over = h[1] == 'finished'
local ends = open == 0 and not over
local state = (ends or over) and 'finished' or 'running'
if ends then set = {'finished', text(now()), 'notify', 1, 'completer', ARGV[4], unpack(set)} end
redis.call('HSET', KEYS[1], 'state', state, unpack(set))
local unitsEnded = 0
if rollout then
  local r = cjson.decode(rollout)
  if countUnits(r, was) then unitsEnded = 1 end
  if overBudget(r) and open > 0 and not h[5] then holdRelease(r, 'budget') end
  saveRelease(r)
end
return {1, applied, ends and 1 or 0, unitsEnded}
`)

// luaCounters returns a Lua table of the counter fields of a head.
func luaCounters() string {
	quoted := make([]string, 0, len(procfleet.States()))
	for _, s := range procfleet.States() {
		quoted = append(quoted, "'"+countField(s)+"'")
	}
	return "local counters = {" + strings.Join(quoted, ", ") + "}\n"
}

// Record applies batches of results in one round trip, with one script call for each
// batch.
func (s *Store) Record(ctx context.Context, batches []taskstore.Batch) ([]taskstore.Recorded, error) {
	calls := make([]*redisconn.Call, 0, len(batches))
	answers := make([]*redisconn.Call, len(batches))
	for i := range batches {
		if _, err := number(batches[i].Task); err != nil {
			continue // an invalid id belongs to no task
		}
		answers[i] = s.recordCall(&batches[i])
		calls = append(calls, answers[i])
	}
	if len(calls) > 0 {
		if err := s.conn.RunDurably(ctx, calls...); err != nil {
			return nil, fmt.Errorf("record results: %w", err)
		}
	}
	recorded := make([]taskstore.Recorded, len(batches))
	for i, c := range answers {
		if c == nil {
			continue
		}
		var err error
		if recorded[i], err = readRecorded(c.Cmd); err != nil {
			return nil, err
		}
	}
	return recorded, nil
}

func readRecorded(cmd *redis.Cmd) (taskstore.Recorded, error) {
	answer, err := cmd.Int64Slice()
	if err != nil || len(answer) != 4 {
		return taskstore.Recorded{}, fmt.Errorf("%w: answer of record: %w", redisconn.ErrDamaged, err)
	}
	return taskstore.Recorded{Known: answer[0] == 1, Applied: int(answer[1]), Completed: answer[2] == 1, UnitsEnded: answer[3] == 1}, nil
}

// recordCall sorts the results by item, so that each block of results and its marks are
// accessed once. It omits results that can never apply.
func (s *Store) recordCall(b *taskstore.Batch) *redisconn.Call {
	results := make([]*procfleet.Result, 0, len(b.Results))
	for i := range b.Results {
		if r := &b.Results[i]; r.Item >= 0 && r.Reason != "" && r.Rank > procfleet.RankNone {
			results = append(results, r)
		}
	}
	slices.SortStableFunc(results, func(a, b *procfleet.Result) int { return cmp.Compare(a.Item, b.Item) })

	keys := s.keys.task(b.Task)
	c := &redisconn.Call{Script: recordScript, Keys: []string{keys.head(), keys.marks()}}
	marks, ranks := make([]byte, len(results)), make([]byte, len(results))
	c.Args = append(make([]any, 0, 4+3*len(results)), marks, ranks, resultBlock, redisconn.NewToken())
	for begin := 0; begin < len(results); {
		block := results[begin].Item / resultBlock
		end := begin
		for end < len(results) && results[end].Item/resultBlock == block {
			end++
		}
		c.Keys = append(c.Keys, keys.results(block))
		c.Args = append(c.Args, block*resultBlock, end-begin)
		for i := begin; i < end; i++ {
			marks[i], ranks[i] = byte(pack.MarkOf(results[i])), byte('0'+results[i].Rank)
			c.Args = append(c.Args, results[i].Item, stored(results[i]))
		}
		begin = end
	}
	return c
}

// stored returns the stored form of a result that is not late.
func stored(r *procfleet.Result) []byte {
	bounded := pack.Bound(*r)
	bounded.Late = false
	return append([]byte(inTime), pack.Result(&bounded)...)
}

// readStored parses a stored result; text must not be empty.
func readStored(text string) (procfleet.Result, error) {
	r, err := pack.ReadResult(text[1:])
	r.Late = text[:1] == late
	return r, err
}
