package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// release is the stored progress of a rollout, see [procfleet.Rollout]. Scripts read and write
// it as JSON without arrays, which Lua cannot tell from objects. Times are texts in
// microseconds, because Lua rounds such large numbers.
type release struct {
	Stage      int                    `json:"s"`
	Phase      procfleet.RolloutPhase `json:"p"`
	Since      string                 `json:"t"`
	Window     int                    `json:"w"`
	Failures   int                    `json:"f"`
	Released   int                    `json:"r"`
	Active     int                    `json:"a"`
	Failed     int                    `json:"x"`
	Waiting    int                    `json:"q"`
	Settled    bool                   `json:"l,omitempty"` // see [procfleet.TransitionSettled]
	Hold       procfleet.HoldKind     `json:"h,omitempty"`
	HoldSince  string                 `json:"ht,omitempty"`
	HoldReason string                 `json:"hr,omitempty"`
	Judged     int                    `json:"v,omitempty"`
	Progressed string                 `json:"m"` // when a unit was last released or ended
	Counted    string                 `json:"c"` // see [pack.CountedMarks]
	Next       int                    `json:"n"` // first chunk whose items are not all granted
	// Zones has the number of active units of each zone that has some.
	Zones map[string]int `json:"z"`
}

// releaseText returns the progress of a new rollout.
func releaseText(r *procfleet.Rollout) ([]byte, error) {
	since := strconv.FormatInt(r.Since.UnixMicro(), 10)
	return json.Marshal(release{
		Phase: r.Phase, Since: since, Window: r.Window, Failures: r.Failures, Progressed: since, Counted: pack.CountedMarks(&r.Plan),
		Zones: map[string]int{},
	})
}

// readRelease parses the progress of a rollout; nil without one.
func readRelease(text string, plan *procfleet.RolloutPlan) (*procfleet.Rollout, error) {
	if text == "" || plan == nil {
		return nil, nil //nolint:nilnil // most tasks have no rollout
	}
	var r release
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("%w: progress of a rollout: %w", redisconn.ErrDamaged, err)
	}
	since, _ := strconv.ParseInt(r.Since, 10, 64) // only scripts write these numbers
	held, _ := strconv.ParseInt(r.HoldSince, 10, 64)
	return &procfleet.Rollout{
		Plan: *plan, Stage: r.Stage, Phase: r.Phase, Since: redisconn.Moment(since), Window: r.Window, Failures: r.Failures,
		Released: r.Released, Active: r.Active, Waiting: r.Waiting, Failed: r.Failed, Judged: r.Judged,
		Hold: procfleet.Hold{Kind: r.Hold, Reason: r.HoldReason, Since: redisconn.Moment(held)},
	}, nil
}

// luaRollout has the functions with which scripts change a rollout r, a decoded [release]. They
// expect the head in KEYS[1] and the marks in KEYS[2].
const luaRollout = `
local function saveRelease(r) redis.call('HSET', KEYS[1], 'release', cjson.encode(r)) end

-- holdRelease sets a hold, unless there is one.
local function holdRelease(r, kind, reason)
  if r.h then return end
  r.h, r.ht, r.hr = kind, text(now()), reason
  note('held', {h = kind, r = reason, g = r.s})
end

-- endHoldOfRelease ends a hold.
local function endHoldOfRelease(r)
  r.h, r.ht, r.hr, r.m = nil, nil, nil, text(now())
end

-- activate changes the number of active units of the rollout and of a zone.
local function activate(r, zone, by)
  r.a = r.a + by
  if not zone then return end
  local active = (r.z[zone] or 0) + by
  r.z[zone] = active > 0 and active or nil
end

local function overBudget(r) return r.f >= 0 and r.x > r.f end

-- unitEnd returns the index after the last item of the unit that begins with item i.
local function unitEnd(units, i)
  local after = string.find(units, '1', i + 2, true)
  return after and after - 1 or #units
end

-- unitStart returns the first item of the unit of item i.
local function unitStart(units, i)
  while i > 0 and string.byte(units, i + 1) ~= 49 do i = i - 1 end
  return i
end

-- regrant divides grants so that each chosen unit has a grant of its own, with the time and the
-- deadline that are given. Chosen units next to each other in one grant get one. forget also
-- removes the first begin. It returns the grants, and the ranges of the new ones.
local function regrant(grants, units, chosen, at, deadline, forget)
  local out, ranges, from = '', {}, 0
  for upto, oldAt, oldDeadline, begun in string.gmatch(grants, '(%d+) (%d+) (%d+) (%d+)\n') do
    local i = from
    while i < tonumber(upto) do
      local start, new = i, chosen[i]
      repeat i = unitEnd(units, i) until i >= tonumber(upto) or chosen[i] ~= new
      local first = new and forget and '0' or begun
      out = out .. i .. ' ' .. (new and at or oldAt) .. ' ' .. (new and deadline or oldDeadline) .. ' ' .. first .. '\n'
      if new then ranges[#ranges + 1] = {start, i, first} end
    end
    from = tonumber(upto)
  end
  return out, ranges
end

local function chunkOf(directory, item)
  local low, high = 0, #directory / 8 - 2
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if tonumber(string.sub(directory, middle * 8 + 1, middle * 8 + 8)) <= item then low = middle else high = middle - 1 end
  end
  return low
end

-- countUnits counts the changes of units, whose items had the marks was before. It returns
-- whether a unit has ended.
local function countUnits(r, was)
  local directory, chunks, seen, ended = redis.call('HGET', KEYS[1], 'directory'), {}, {}, false
  local counted = '[' .. r.c .. ']'
  for item in pairs(was) do
    local k = chunkOf(directory, item)
    local c = chunks[k]
    if not c then
      local f, first, past = redis.call('HMGET', KEYS[1], 'units:' .. k, 'granted:' .. k, 'zone:' .. k), itemsOf(directory, k)
      c = {units = f[1], granted = tonumber(f[2] or 0), zone = f[3], first = first, marks = redis.call('GETRANGE', KEYS[2], first, past - 1)}
      chunks[k] = c
    end
    local from = unitStart(c.units, item - c.first)
    if not seen[c.first + from] then
      seen[c.first + from] = true
      local to, before = unitEnd(c.units, from), {}
      local after = string.sub(c.marks, from + 1, to)
      for i = from, to - 1 do before[#before + 1] = was[c.first + i] or string.sub(c.marks, i + 1, i + 1) end
      before = table.concat(before)
      if string.find(before, '[pdw]') and not string.find(after, '[pdw]') then
        ended = true
        if string.find(before, 'w') then r.q = r.q - 1 elseif from < c.granted then activate(r, c.zone, -1) end
      end
      local had, has = string.find(before, counted), string.find(after, counted)
      if has and not had then r.x = r.x + 1 elseif had and not has then r.x = r.x - 1 end
    end
  end
  if ended then r.m = text(now()) end
  return ended
end
`

// advanceScript moves a rollout on.
//
// KEYS[1] head
// KEYS[2] marks
// ARGV[1] "all" to return the open items of earlier grants too
// ARGV[2] why maintenance windows permit no releases, or ""
// ARGV[3] number of the following items
// ARGV[4..] first items of waiting units whose hosts have returned, ascending, then fields of the
// head to return
// Returns {{grants}, {fields}} or {} if the task has no rollout. A grant is its chunk, its first
// item in the chunk and in the task, the item after its last, its time, its deadline, its first
// begin or 0, the numbers of pending, delivered and waiting items, and "new" if this call has made
// it.
//
// The field "grants:" and the number of a chunk has a line for each grant: the item after its
// last, its time, its deadline and its first begin or 0.
var advanceScript = redis.NewScript(redisconn.LuaNow + luaItemsOf + luaNote + luaRollout + `
local h = redis.call('HMGET', KEYS[1], 'release', 'about', 'directory', 'state', 'hold', 'cancel', 'chunks', 'deadline')
if not h[1] then return {} end
local r, plan, time = cjson.decode(h[1]), cjson.decode(h[2]).g, now()
r.q = r.q or 0
local list = {}

local function add(k, from, upto, at, deadline, begun, new)
  local first = itemsOf(h[3], k)
  local marks = redis.call('GETRANGE', KEYS[2], first + from, first + upto - 1)
  local _, pending = string.gsub(marks, 'p', '')
  local _, delivered = string.gsub(marks, 'd', '')
  local _, waiting = string.gsub(marks, 'w', '')
  if new ~= '' or pending + delivered + waiting > 0 then
    for _, v in ipairs({k, from, first + from, upto, at, deadline, begun, pending, delivered, waiting, new}) do list[#list + 1] = tostring(v) end
  end
end

-- openGrants adds the grants with open items. A grant of a time to come was made before the
-- clock stepped back, and is dated back.
local function openGrants()
  for k = 0, h[7] - 1 do
    local first, past = itemsOf(h[3], k)
    local grants = string.find(redis.call('GETRANGE', KEYS[2], first, past - 1), '[pdw]') and redis.call('HGET', KEYS[1], 'grants:' .. k)
    if grants then
      local from, dated = 0, ''
      for upto, at, deadline, begun in string.gmatch(grants, '(%d+) (%d+) (%d+) (%d+)\n') do
        if tonumber(at) > time then at, deadline = text(time), text(time + plan.t / 1000) end
        add(k, from, upto, at, deadline, begun, '')
        from = tonumber(upto)
        dated = dated .. upto .. ' ' .. at .. ' ' .. deadline .. ' ' .. begun .. '\n'
      end
      if dated ~= grants then redis.call('HSET', KEYS[1], 'grants:' .. k, dated) end
    end
  end
end

-- room returns whether one more unit of a zone may be active.
local function room(zone)
  if r.a >= r.w then return false end
  if not zone then return true end
  local limits, zones = plan.z or {}, 0
  if r.z[zone] then return not limits.w or r.z[zone] < limits.w end
  for _ in pairs(r.z) do zones = zones + 1 end
  return not limits.o or zones < limits.o
end

-- releaseAgain releases those of the waiting units whose hosts have returned that the windows permit.
local function releaseAgain()
  local i, last = 4, ARGV[2] == '' and 3 + ARGV[3] or 3
  while i <= last do
    local k = chunkOf(h[3], tonumber(ARGV[i]))
    local first, past = itemsOf(h[3], k)
    local f = redis.call('HMGET', KEYS[1], 'units:' .. k, 'grants:' .. k, 'zone:' .. k)
    local marks, chosen = redis.call('GETRANGE', KEYS[2], first, past - 1), {}
    repeat
      local from = tonumber(ARGV[i]) - first
      local stop = string.byte(f[1], from + 1) == 49 and unitEnd(f[1], from) or from
      local unit = string.sub(marks, from + 1, stop)
      if string.find(unit, 'w') and room(f[3]) then
        marks = string.sub(marks, 1, from) .. string.gsub(unit, 'w', 'p') .. string.sub(marks, stop + 1)
        activate(r, f[3], 1)
        r.q, chosen[from] = r.q - 1, true
      end
      i = i + 1
    until i > last or tonumber(ARGV[i]) >= past
    if next(chosen) then
      local at, deadline = text(time), text(time + plan.t / 1000)
      local grants, ranges = regrant(f[2], f[1], chosen, at, deadline)
      redis.call('SETRANGE', KEYS[2], first, marks)
      redis.call('HSET', KEYS[1], 'grants:' .. k, grants)
      for _, g in ipairs(ranges) do add(k, g[1], g[2], at, deadline, g[3], 'new') end
      r.m = at
    end
  end
end

-- grant releases as many units of the current stage as the windows permit. It returns whether
-- all units of the stage have ended.
local function grant()
  for k = r.n, plan.s[r.s + 1].c - 1 do
    if r.a >= r.w then return false end
    local f = redis.call('HMGET', KEYS[1], 'units:' .. k, 'granted:' .. k, 'grants:' .. k, 'zone:' .. k)
    local from, first, past = tonumber(f[2] or 0), itemsOf(h[3], k)
    local upto, marks = from, redis.call('GETRANGE', KEYS[2], first, past - 1)
    while upto < #f[1] and room(f[4]) do
      local stop = unitEnd(f[1], upto)
      if string.find(string.sub(marks, upto + 1, stop), '[pd]') then activate(r, f[4], 1) end
      r.r, upto = r.r + 1, stop
    end
    if upto > from then
      local at, deadline = text(time), text(time + plan.t / 1000)
      redis.call('HSET', KEYS[1], 'granted:' .. k, upto, 'grants:' .. k, (f[3] or '') .. upto .. ' ' .. at .. ' ' .. deadline .. ' 0\n')
      add(k, from, upto, at, deadline, 0, 'new')
      r.m = at
    end
    if upto == #f[1] and k == r.n then r.n = k + 1 end
  end
  return r.a == 0
end

local function enter(phase) r.p, r.t = phase, text(time) end

-- step makes one transition, and returns whether another may follow.
local function step()
  if overBudget(r) then
    holdRelease(r, 'budget')
    return false
  end
  if r.p == 'releasing' then
    releaseAgain()
    if grant() then
      if r.s + 1 == #plan.s and r.q > 0 then
        if not r.l then note('settled', {g = r.s}) end
        r.l = true
        return false
      end
      enter('baking')
      return true
    end
    if plan.d and time - tonumber(r.m) >= plan.d / 1000 then holdRelease(r, 'stalled') end
    return false
  end
  if r.s + 1 == #plan.s then return false end
  if r.p == 'baking' then
    if tonumber(r.t) > time then r.t = text(time) end -- the clock stepped back
    if time - tonumber(r.t) < (plan.b or 0) / 1000 then return false end
    enter('gate')
    return true
  end
  if plan.h and (r.v or 0) <= r.s then return false end
  if plan.a then
    holdRelease(r, 'approval')
    return false
  end
  r.s = r.s + 1
  note('stage', {g = r.s})
  enter('releasing')
  return true
end

if ARGV[1] == 'all' then openGrants() end
local open = h[4] ~= 'finished' and h[4] ~= 'rejected' and time < tonumber(h[8])
if open and not h[5] and not h[6] then
  local closed = ARGV[2]
  if r.h == 'window' and closed == '' then
    endHoldOfRelease(r)
    note('resumed', {h = 'window', g = r.s})
  elseif closed ~= '' and r.n < tonumber(h[7]) then
    holdRelease(r, 'window', closed)
  end
  while not r.h and step() do end
  saveRelease(r)
end
return {list, redis.call('HMGET', KEYS[1], unpack(ARGV, 4 + ARGV[3]))}
`)

// endHoldScript ends a hold of a rollout.
//
// Keys, arguments and reply are those of [pauseScript], with the kind of the hold and the number
// of failed units to tolerate instead of the hold. The outcome may also be "failures".
var endHoldScript = controlScript(`
local stored = redis.call('HGET', KEYS[1], 'release')
if not stored then return 'gone' end
local r, kind, failures = cjson.decode(stored), ARGV[#ARGV - 1], tonumber(ARGV[#ARGV])
if r.h ~= kind then return 'ok' end
if other then return 'seq' end
if kind == 'budget' then
  if failures >= 0 and failures < r.x then return 'failures' end
  r.f = failures
end
endHoldOfRelease(r)
if kind == 'unhealthy' or kind == 'inconclusive' then r.v = r.s + 1 end
if kind == 'approval' then
  r.s, r.p, r.t = r.s + 1, 'releasing', text(now())
  note('approved', {g = r.s})
else
  note('resumed', {h = kind, g = r.s})
end
saveRelease(r)
`)

// judgeScript ends the automatic gate of a stage.
//
// Keys, arguments and reply are those of [pauseScript], with the stage, the kind of a hold or "", and
// its reason instead of the hold.
var judgeScript = controlScript(`
local stored = redis.call('HGET', KEYS[1], 'release')
if not stored then return 'gone' end
local r, stage, kind = cjson.decode(stored), tonumber(ARGV[#ARGV - 2]), ARGV[#ARGV - 1]
if r.p ~= 'gate' or r.s ~= stage or r.h or (r.v or 0) > stage then return 'ok' end
if kind == '' then
  r.v = stage + 1
  saveRelease(r)
  return 'ok'
end
holdRelease(r, kind, ARGV[#ARGV])
saveRelease(r)
`)

// JudgeStage ends the automatic gate of a stage, in one round trip.
func (s *Store) JudgeStage(ctx context.Context, id procfleet.TaskID, stage int, hold procfleet.Hold) (procfleet.Task, error) {
	return s.control(ctx, id, "judge a stage of", judgeScript, taskstore.AnySeq, stage, string(hold.Kind), hold.Reason)
}

// AdvanceRollout moves a rollout on, in one round trip. It waits for replicas, because the caller
// publishes what was granted.
func (s *Store) AdvanceRollout(ctx context.Context, id procfleet.TaskID, o taskstore.Advance) (taskstore.Advanced, error) {
	if _, err := number(id); err != nil {
		return taskstore.Advanced{}, err
	}
	keys := s.keys.task(id)
	c := &redisconn.Call{Script: advanceScript, Keys: []string{keys.head(), keys.marks()}, Args: []any{"", o.Closed, 0}}
	if o.All {
		c.Args[0] = "all"
	}
	for _, i := range slices.Sorted(slices.Values(o.Returned)) {
		if i >= 0 {
			c.Args = append(c.Args, i)
		}
	}
	c.Args[2] = len(c.Args) - 3
	for _, f := range taskFields() {
		c.Args = append(c.Args, f)
	}
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return taskstore.Advanced{}, fmt.Errorf("advance task %s: %w", id, err)
	}
	a, err := readAdvanced(id, c.Cmd)
	if err != nil {
		err = fmt.Errorf("advance task %s: %w", id, err)
	}
	return a, err
}

func readAdvanced(id procfleet.TaskID, cmd *redis.Cmd) (a taskstore.Advanced, err error) {
	values, err := cmd.Slice()
	if err != nil {
		return a, err
	}
	if len(values) != 2 {
		return a, taskstore.ErrNotFound
	}
	grants, _ := values[0].([]any)
	fields, _ := values[1].([]any)
	for h := (head{values: grants}); len(h.values) > 0; {
		a.Items = append(a.Items, taskstore.GrantedItems{
			Chunk: int(h.int()), From: int(h.int()), First: int(h.int()),
			Grant:   taskstore.Grant{Upto: int(h.int()), At: redisconn.Moment(h.int()), Deadline: redisconn.Moment(h.int()), Begun: redisconn.Moment(h.int())},
			Pending: int(h.int()), Delivered: int(h.int()), Waiting: int(h.int()), New: h.text() == "new",
		})
	}
	a.Task, err = readHead(id, fields)
	return a, err
}

// EndHold ends a hold of a rollout, in one round trip.
func (s *Store) EndHold(ctx context.Context, id procfleet.TaskID, kind procfleet.HoldKind, failures, seq int) (procfleet.Task, error) {
	return s.control(ctx, id, "end a hold of", endHoldScript, seq, string(kind), failures)
}
