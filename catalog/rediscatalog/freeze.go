package rediscatalog

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// freezeMember encodes a scope so that the bytes of members sort in the order that
// [catalog.Freezes] requires: the host, if any, as in [hostMember]; a NUL, which
// neither a host nor a namespace contains; the namespace.
func freezeMember(s catalog.Scope) string {
	if s.Host.IsZero() {
		return nameEnd + s.Namespace
	}
	return hostMember(s.Host) + nameEnd + s.Namespace
}

func readFreezeMember(m string) (catalog.Scope, error) {
	host, namespace, found := strings.Cut(m, nameEnd)
	if !found {
		return catalog.Scope{}, fmt.Errorf("%w: freezes have %.80q", redisconn.ErrDamaged, m)
	}
	s := catalog.Scope{Namespace: namespace}
	if host == "" {
		return s, nil
	}
	var err error
	s.Host, err = readHostMember(host)
	return s, err
}

// freezeNote is the part of a stored freeze that follows its end time.
type freezeNote struct {
	Reason string `json:"r,omitempty"`
	By     string `json:"b,omitempty"`
}

// luaFrozen decides whether a value of KEYS[1] is a freeze in effect. The value begins
// with the end of the freeze in microseconds, as 16 digits.
const luaFrozen = redisconn.LuaNow + `
local time = now()
local function frozen(value) return value and tonumber(string.sub(value, 1, 16)) > time end
local function forget(scope)
  redis.call('HDEL', KEYS[1], scope)
  redis.call('ZREM', KEYS[2], scope)
  redis.call('ZREM', KEYS[3], scope)
end
`

// freezeScript freezes scopes. It also removes ended freezes, more than it adds, so
// that they do not accumulate.
//
// KEYS[1] all
// KEYS[2] order
// KEYS[3] ends
// ARGV[1] end of the freezes in microseconds, as 16 digits
// ARGV[2] JSON of a [freezeNote]
// ARGV[3..] scopes
// Returns 1.
var freezeScript = redis.NewScript(luaFrozen + `
for _, scope in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', text(time), 'LIMIT', 0, 1000)) do forget(scope) end
for i = 3, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[1] .. ARGV[2])
  redis.call('ZADD', KEYS[2], 0, ARGV[i])
  redis.call('ZADD', KEYS[3], ARGV[1], ARGV[i])
end
local last = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
for i = 1, 3 do redis.call('PEXPIREAT', KEYS[i], text(math.ceil(tonumber(last) / 1000))) end
return 1
`)

// liftScript lifts freezes.
//
// KEYS as in freezeScript, then the key of the stored reply
// ARGV[1..] scopes
// Returns a digit for each scope: 1 if it was frozen.
var liftScript = answeringOnce(3, luaFrozen+`
local existed, lifted = {}, false
for i, scope in ipairs(ARGV) do
  local found = frozen(redis.call('HGET', KEYS[1], scope))
  existed[i] = found and '1' or '0'
  lifted = lifted or found
  forget(scope)
end
return table.concat(existed), lifted
`)

// freezePageScript reads freezes in order, beginning after a scope.
//
// KEYS[1] all
// KEYS[2] order
// ARGV[1] start, in the syntax of ZRANGEBYLEX
// ARGV[2] maximum number of freezes
// Returns scopes, each followed by its value.
var freezePageScript = redis.NewScript(luaFrozen + `
local page, from, limit = {}, ARGV[1], tonumber(ARGV[2])
repeat
  local scopes = redis.call('ZRANGEBYLEX', KEYS[2], from, '+', 'LIMIT', 0, limit)
  for _, scope in ipairs(scopes) do
    local value = redis.call('HGET', KEYS[1], scope)
    if frozen(value) and #page < 2 * limit then
      page[#page + 1] = scope
      page[#page + 1] = value
    end
    from = '(' .. scope
  end
until #page >= 2 * limit or #scopes < limit
return page
`)

// freezesOfScript reads the freezes of hosts; the host "" stands for freezes on all
// hosts.
//
// KEYS as in freezePageScript
// ARGV[1..] hosts
// Returns for each host a list of scopes, each followed by its value.
var freezesOfScript = redis.NewScript(luaFrozen + `
local all = {}
for i, host in ipairs(ARGV) do
  local found = {}
  for _, scope in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], '[' .. host .. '\0', '(' .. host .. '\1')) do
    local value = redis.call('HGET', KEYS[1], scope)
    if frozen(value) then
      found[#found + 1] = scope
      found[#found + 1] = value
    end
  end
  all[i] = found
end
return all
`)

// Freeze freezes scopes, in one round trip for the time and one with a script call for
// each 500 scopes.
func (s *Catalog) Freeze(ctx context.Context, scopes []catalog.Scope, f catalog.Freezing) (time.Time, error) {
	if err := f.Validate(); err != nil {
		return time.Time{}, fmt.Errorf("freeze: %w", err)
	}
	for _, scope := range scopes {
		if err := scope.Validate(); err != nil {
			return time.Time{}, fmt.Errorf("freeze: %w", err)
		}
	}
	note, err := json.Marshal(freezeNote{Reason: f.Reason, By: f.By})
	if err != nil {
		return time.Time{}, fmt.Errorf("freeze: %w", err)
	}
	now, err := s.conn.Now(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("freeze: %w", err)
	}
	until := now.Add(f.TTL)
	calls := s.freezeCalls(freezeScript, scopes, redisconn.StampText(until), note)
	if len(calls) == 0 {
		return until, nil
	}
	if err := s.conn.RunDurably(ctx, calls...); err != nil {
		return time.Time{}, fmt.Errorf("freeze: %w", err)
	}
	return until, nil
}

// freezeCalls divides scopes among calls of a script, 500 scopes each.
func (s *Catalog) freezeCalls(script *redis.Script, scopes []catalog.Scope, first ...any) []*redisconn.Call {
	var calls []*redisconn.Call
	for some := range slices.Chunk(scopes, redisconn.ScriptItems) {
		c := &redisconn.Call{Script: script, Keys: s.keys.freezes(), Args: slices.Clone(first)}
		for _, scope := range some {
			c.Args = append(c.Args, freezeMember(scope))
		}
		calls = append(calls, c)
	}
	return calls
}

// Lift lifts freezes in one round trip, with a script call for each 500 scopes.
func (s *Catalog) Lift(ctx context.Context, scopes []catalog.Scope) ([]bool, error) {
	calls := s.freezeCalls(liftScript, scopes)
	if len(calls) == 0 {
		return nil, nil
	}
	for _, c := range calls {
		c.Keys = append(c.Keys, s.keys.freezeAnswer(redisconn.NewToken()))
	}
	if err := s.conn.RunDurably(ctx, calls...); err != nil {
		return nil, fmt.Errorf("lift freezes: %w", err)
	}
	existed := make([]bool, len(scopes))
	positions := make([]*bool, len(scopes))
	for i := range existed {
		positions[i] = &existed[i]
	}
	for i, some := range slices.Collect(slices.Chunk(positions, redisconn.ScriptItems)) {
		if err := readExisted(calls[i], some); err != nil {
			return nil, fmt.Errorf("lift freezes: %w", err)
		}
	}
	return existed, nil
}

// FreezePage reads a page of freezes in one round trip.
func (s *Catalog) FreezePage(ctx context.Context, after catalog.Scope, limit int) ([]catalog.Freeze, error) {
	if limit <= 0 {
		return nil, ctx.Err()
	}
	c := &redisconn.Call{Script: freezePageScript, Keys: s.keys.freezes(), Args: []any{"(" + freezeMember(after), strconv.Itoa(limit)}}
	if err := s.conn.Run(ctx, c); err != nil {
		return nil, fmt.Errorf("read freezes: %w", err)
	}
	values, err := c.Cmd.Slice()
	if err != nil {
		return nil, fmt.Errorf("read freezes: %w", err)
	}
	return readFreezes(values)
}

// FreezesOf reads the freezes of hosts in one round trip, with a script call for each
// 500 hosts.
func (s *Catalog) FreezesOf(ctx context.Context, hosts []procfleet.Host) ([][]catalog.Freeze, error) {
	if len(hosts) == 0 {
		return nil, nil
	}
	asked := make([]any, 1, len(hosts)+1)
	asked[0] = "" // freezes on all hosts
	for _, h := range hosts {
		asked = append(asked, hostMember(h))
	}
	var calls []*redisconn.Call
	for some := range slices.Chunk(asked, redisconn.ScriptItems) {
		calls = append(calls, &redisconn.Call{Script: freezesOfScript, Keys: s.keys.freezes(), Args: some})
	}
	if err := s.conn.Run(ctx, calls...); err != nil {
		return nil, fmt.Errorf("read freezes of hosts: %w", err)
	}
	all := make([][]catalog.Freeze, 0, len(asked))
	for _, c := range calls {
		lists, err := c.Cmd.Slice()
		if err != nil {
			return nil, fmt.Errorf("read freezes of hosts: %w", err)
		}
		for _, list := range lists {
			values, _ := list.([]any)
			fs, err := readFreezes(values)
			if err != nil {
				return nil, err
			}
			all = append(all, fs)
		}
	}
	everywhere := all[0]
	for i, own := range all[1:] {
		all[i+1] = append(slices.Clip(everywhere), own...)
	}
	return all[1:], nil
}

// readFreezes parses scopes, each followed by its value.
func readFreezes(values []any) ([]catalog.Freeze, error) {
	var fs []catalog.Freeze
	for pair := range slices.Chunk(values, 2) {
		scope, value := "", ""
		if len(pair) == 2 {
			scope, _ = pair[0].(string)
			value, _ = pair[1].(string)
		}
		f, err := readFreeze(scope, value)
		if err != nil {
			return nil, err
		}
		fs = append(fs, f)
	}
	return fs, nil
}

func readFreeze(member, value string) (catalog.Freeze, error) {
	scope, err := readFreezeMember(member)
	if err != nil {
		return catalog.Freeze{}, err
	}
	if len(value) < redisconn.StampWidth {
		return catalog.Freeze{}, fmt.Errorf("%w: freeze of %d bytes", redisconn.ErrDamaged, len(value))
	}
	us, err := strconv.ParseInt(value[:redisconn.StampWidth], 10, 64)
	if err != nil {
		return catalog.Freeze{}, fmt.Errorf("%w: end of a freeze: %w", redisconn.ErrDamaged, err)
	}
	var note freezeNote
	if err := json.Unmarshal([]byte(value[redisconn.StampWidth:]), &note); err != nil {
		return catalog.Freeze{}, fmt.Errorf("%w: note of a freeze: %w", redisconn.ErrDamaged, err)
	}
	return catalog.Freeze{Scope: scope, Until: redisconn.Moment(us), Reason: note.Reason, By: note.By}, nil
}
