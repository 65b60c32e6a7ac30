package rediscatalog

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// luaUses counts the registrations of a namespace that use each spec. KEYS[2] holds the
// specs and KEYS[3] the counts. use accumulates changes; store writes them.
const luaUses = `
local uses, order = {}, {}
local function use(id, n)
  if not uses[id] then
    uses[id] = 0
    order[#order + 1] = id
  end
  uses[id] = uses[id] + n
end
local function store(packed)
  for _, id in ipairs(order) do
    if uses[id] ~= 0 and redis.call('HINCRBY', KEYS[3], id, uses[id]) <= 0 then
      redis.call('HDEL', KEYS[3], id)
      redis.call('HDEL', KEYS[2], id)
    elseif uses[id] > 0 then
      redis.call('HSETNX', KEYS[2], id, packed[id])
    end
  end
end
`

// registerScript registers processes of one namespace.
//
// KEYS[1] registrations
// KEYS[2] specs
// KEYS[3] uses
// KEYS[4] index
// KEYS[5] key of the stored reply, optional
// ARGV[1] time at which the specs were requested; "" means now
// ARGV[2] registered specs that were requested before this time are replaced
// ARGV[3] number of specs; their ids and packed forms follow
// ARGV[..] runs of members: the id of their spec, the number of members, the members
// Returns a digit for each member: 1 if it was registered before.
//
// A big task has 10,000 members. Therefore the script builds values shared by many
// members only once, and passes the score as text, because Redis formats numbers
// slowly.
var registerScript = answeringOnce(4, redisconn.LuaNow+luaUses+`
local specs, packed, existed = tonumber(ARGV[3]), {}, {}
local at = string.format('%016.0f', now())
local asked = ARGV[1] ~= '' and ARGV[1] or at
for i = 4, 3 + 2 * specs, 2 do packed[ARGV[i]] = ARGV[i + 1] end
local members, ids, fresh, next = {}, {}, {}, 4 + 2 * specs
while next < #ARGV do
  local id, last = ARGV[next], next + 1 + ARGV[next + 1]
  fresh[id] = id .. at .. asked
  for i = next + 2, last do
    members[#members + 1] = ARGV[i]
    ids[#members] = id
  end
  next = last + 1
end
local put, enter, became = {}, {}, {}
for i, before in ipairs(redis.call('HMGET', KEYS[1], unpack(members))) do
  local member, id = members[i], ids[i]
  local old, new = became[member] or before, nil
  existed[i] = old and '1' or '0'
  if not old then
    new = fresh[id]
    enter[#enter + 1] = '0'
    enter[#enter + 1] = member
  elseif string.sub(old, 33) < ARGV[2] then
    new = id .. string.sub(old, 17, 32) .. asked
    use(string.sub(old, 1, 16), -1)
  end
  if new then
    use(id, 1)
    became[member] = new
    put[#put + 1] = member
    put[#put + 1] = new
  end
end
if #put > 0 then redis.call('HSET', KEYS[1], unpack(put)) end
if #enter > 0 then redis.call('ZADD', KEYS[4], unpack(enter)) end
store(packed)
return table.concat(existed), #put > 0
`)

// unregisterScript removes registrations of one namespace. Whether a process remains in
// the index depends on the host's report, which is in another slot. Therefore the
// script sets a dirty mark on the process.
//
// KEYS[1] registrations
// KEYS[2] specs
// KEYS[3] uses
// KEYS[4] dirty marks
// KEYS[5] key of the stored reply
// ARGV[1] token of the dirty marks
// ARGV[2] time of the request whose registrations are removed; "" means all
// ARGV[3..] members
// Returns a digit for each member: 1 if it was removed.
var unregisterScript = answeringOnce(4, luaUses+`
local existed, gone, dirty = {}, {}, {}
local asked = ARGV[2]
for i, old in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV, 3))) do
  local member = ARGV[i + 2]
  local made = old and (asked == '' or string.sub(old, 33) == asked and string.sub(old, 17, 32) >= asked)
  existed[i] = made and not gone[member] and '1' or '0'
  if existed[i] == '1' then
    gone[member] = true
    gone[#gone + 1] = member
    dirty[#dirty + 1] = member
    dirty[#dirty + 1] = ARGV[1]
    use(string.sub(old, 1, 16), -1)
  end
end
if #gone > 0 then
  redis.call('HDEL', KEYS[1], unpack(gone))
  redis.call('HSET', KEYS[4], unpack(dirty))
end
store({})
return table.concat(existed), #gone > 0
`)

// Register stores registrations in one round trip, with one script call for at most 500
// registrations of a namespace. If replace is set and the reply is lost, the repeated
// call reports the processes of the first attempt as registered before. Storing the
// reply would avoid that, but would slow down every start, and no caller reads it.
func (s *Catalog) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	batch := registerBatch{store: s, replace: replace, open: make(map[registerTerms]*registerCall)}
	existed := make([][]bool, len(ds))
	for i := range ds {
		existed[i] = make([]bool, len(ds[i].Hosts))
		if err := batch.add(&ds[i], existed[i]); err != nil {
			return nil, fmt.Errorf("register: definition %d: %w", i, err)
		}
	}
	calls := make([]*redisconn.Call, len(batch.calls))
	for i, r := range batch.calls {
		calls[i] = r.call(s)
	}
	if len(calls) == 0 {
		return existed, nil
	}
	if err := s.conn.RunDurably(ctx, calls...); err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	for i, r := range batch.calls {
		if err := readExisted(calls[i], r.existed); err != nil {
			return nil, fmt.Errorf("register: %w", err)
		}
	}
	return existed, nil
}

// registerBatch divides definitions into script calls.
type registerBatch struct {
	store   *Catalog
	replace bool
	calls   []*registerCall
	open    map[registerTerms]*registerCall // the last call for each set of terms
}

// registerTerms holds the arguments that all registrations of a call share. The moments
// are in the form that [registerScript] expects.
type registerTerms struct {
	namespace string
	asked     string
	before    string
}

type registerCall struct {
	registerTerms
	specs   map[string]bool
	packed  []any // spec ids, each followed by the packed spec
	runs    []registerRun
	bytes   int
	existed []*bool // destination of the reply for each member
}

// registerRun is a sequence of members with the same spec.
type registerRun struct {
	id      string
	members []any
}

// Texts that sort before and after every moment.
const (
	beforeAll = ""
	afterAll  = "~"
)

func (b *registerBatch) terms(d *catalog.Definition) registerTerms {
	t := registerTerms{namespace: d.Spec.Namespace, before: beforeAll}
	if !d.Asked.IsZero() {
		t.asked = redisconn.StampText(d.Asked)
	}
	if b.replace {
		t.before = cmp.Or(t.asked, afterAll)
	}
	return t
}

func (b *registerBatch) add(d *catalog.Definition, existed []bool) error {
	packed, err := pack.Spec(&d.Spec)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(packed)
	id, terms := string(sum[:specIDWidth]), b.terms(d)
	for i, h := range d.Hosts {
		if err := d.Process(h).Validate(); err != nil {
			return err
		}
		r := b.callFor(terms, id, len(packed))
		if !r.specs[id] {
			r.specs[id] = true
			r.packed = append(r.packed, id, packed)
			r.bytes += len(packed)
		}
		m := member(d.Spec.Name, h)
		if n := len(r.runs); n == 0 || r.runs[n-1].id != id {
			r.runs = append(r.runs, registerRun{id: id})
		}
		run := &r.runs[len(r.runs)-1]
		run.members = append(run.members, m)
		r.bytes += len(m)
		r.existed = append(r.existed, &existed[i])
	}
	return nil
}

// callFor returns the call to which a member is added whose spec has n bytes.
func (b *registerBatch) callFor(terms registerTerms, id string, n int) *registerCall {
	r := b.open[terms]
	if r != nil && len(r.existed) < redisconn.ScriptItems && (r.specs[id] || r.bytes+n <= redisconn.ScriptBytes) {
		return r
	}
	r = &registerCall{registerTerms: terms, specs: make(map[string]bool)}
	b.open[terms] = r
	b.calls = append(b.calls, r)
	return r
}

func (r *registerCall) call(s *Catalog) *redisconn.Call {
	keys := s.keys.namespace(r.namespace)
	c := &redisconn.Call{Script: registerScript, Keys: []string{keys.registrations(), keys.specs(), keys.uses(), keys.index()}}
	c.Args = append([]any{r.asked, r.before, len(r.specs)}, r.packed...)
	for _, run := range r.runs {
		c.Args = append(append(c.Args, run.id, len(run.members)), run.members...)
	}
	if r.before == beforeAll {
		c.Keys = append(c.Keys, keys.answer(redisconn.NewToken()))
	}
	return c
}

// readExisted parses the reply of a call into existed.
func readExisted(c *redisconn.Call, existed []*bool) error {
	letters, err := c.Cmd.Text()
	if err != nil || len(letters) != len(existed) {
		return fmt.Errorf("%w: what existed: %w", redisconn.ErrDamaged, err)
	}
	for i, position := range existed {
		*position = letters[i] == '1'
	}
	return nil
}

// Unregister removes registrations in one round trip, with one script call for at most
// 500 registrations of a namespace. It then removes processes that are not reported
// from the index. If that fails, the next [Catalog.EntryPage] does it.
func (s *Catalog) Unregister(ctx context.Context, ps []catalog.Process) ([]bool, error) {
	return s.unregister(ctx, ps, "")
}

// EndRegistrations removes registrations as [Catalog.Unregister] does.
func (s *Catalog) EndRegistrations(ctx context.Context, ps []catalog.Process, asked time.Time) ([]bool, error) {
	return s.unregister(ctx, ps, redisconn.StampText(asked))
}

func (s *Catalog) unregister(ctx context.Context, ps []catalog.Process, asked string) ([]bool, error) {
	existed := make([]bool, len(ps))
	token := redisconn.NewToken()
	parts := byNamespace(ps)
	calls := make([]*redisconn.Call, len(parts))
	for i, part := range parts {
		keys := s.keys.namespace(part.namespace)
		calls[i] = &redisconn.Call{
			Script: unregisterScript,
			Keys:   []string{keys.registrations(), keys.specs(), keys.uses(), keys.dirtyMarks(), keys.answer(redisconn.NewToken())},
			Args:   append([]any{token, asked}, part.members()...),
		}
	}
	if len(calls) == 0 {
		return existed, nil
	}
	if err := s.conn.RunDurably(ctx, calls...); err != nil {
		return nil, fmt.Errorf("unregister: %w", err)
	}
	for i, part := range parts {
		positions := make([]*bool, len(part.positions))
		for j, position := range part.positions {
			positions[j] = &existed[position]
		}
		if err := readExisted(calls[i], positions); err != nil {
			return nil, fmt.Errorf("unregister: %w", err)
		}
	}
	for _, part := range parts {
		if err := s.settleDirtyMarks(ctx, part.dirtyMarks(existed, token)); err != nil {
			s.conn.Log().WithError(err).Debug("registration index not cleaned")
			break
		}
	}
	return existed, nil
}

// namespacePart holds at most [redisconn.ScriptItems] processes of one namespace, with their
// positions in the caller's list.
type namespacePart struct {
	namespace string
	processes []catalog.Process
	positions []int
}

func byNamespace(ps []catalog.Process) []*namespacePart {
	var parts []*namespacePart
	open := make(map[string]*namespacePart)
	for i, p := range ps {
		part := open[p.Namespace]
		if part == nil || len(part.positions) == redisconn.ScriptItems {
			part = &namespacePart{namespace: p.Namespace}
			open[p.Namespace] = part
			parts = append(parts, part)
		}
		part.processes, part.positions = append(part.processes, p), append(part.positions, i)
	}
	return parts
}

func (p *namespacePart) members() []any {
	members := make([]any, len(p.processes))
	for i, process := range p.processes {
		members[i] = member(process.Name, process.Host)
	}
	return members
}

// dirtyMarks returns the dirty marks that [unregisterScript] has set.
func (p *namespacePart) dirtyMarks(existed []bool, token string) dirtyMarks {
	d := dirtyMarks{namespace: p.namespace}
	for i, process := range p.processes {
		if existed[p.positions[i]] {
			d.processes, d.tokens = append(d.processes, process), append(d.tokens, token)
		}
	}
	return d
}

// luaLookup reads registrations. KEYS[1] holds the registrations, KEYS[2] the specs. It
// returns the stored registration of each member, the distinct ids of their specs, and
// these specs.
const luaLookup = `
local function lookup(members)
  if #members == 0 then return {}, {}, {} end
  local values, ids, seen = redis.call('HMGET', KEYS[1], unpack(members)), {}, {}
  for i = 1, #members do
    local id = values[i] and string.sub(values[i], 1, 16)
    if id and not seen[id] then
      seen[id] = true
      ids[#ids + 1] = id
    end
  end
  return values, ids, #ids > 0 and redis.call('HMGET', KEYS[2], unpack(ids)) or {}
end
`

// lookupScript reads registrations of one namespace.
//
// KEYS[1] registrations
// KEYS[2] specs
// ARGV[1..] members
// Returns {registration of each member, spec ids, packed specs}.
var lookupScript = redis.NewScript(luaLookup + `return {lookup(ARGV)}`)

// Registrations reads registrations in one round trip.
func (s *Catalog) Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error) {
	found := make([]*catalog.Registration, len(ps))
	parts := byNamespace(ps)
	calls := make([]*redisconn.Call, len(parts))
	for i, part := range parts {
		keys := s.keys.namespace(part.namespace)
		calls[i] = &redisconn.Call{Script: lookupScript, Keys: []string{keys.registrations(), keys.specs()}, Args: part.members()}
	}
	if len(calls) == 0 {
		return found, nil
	}
	if err := s.conn.Run(ctx, calls...); err != nil {
		return nil, fmt.Errorf("read registrations: %w", err)
	}
	for i, part := range parts {
		answer, err := calls[i].Cmd.Slice()
		if err != nil || len(answer) != 3 {
			return nil, fmt.Errorf("%w: answer about registrations: %w", redisconn.ErrDamaged, err)
		}
		list, err := readRegistrations(part.processes, answer)
		if err != nil {
			return nil, err
		}
		for j, position := range part.positions {
			found[position] = list[j]
		}
	}
	return found, nil
}

// readRegistrations parses the result of [luaLookup].
func readRegistrations(ps []catalog.Process, answer []any) ([]*catalog.Registration, error) {
	values, ids, packed := list(answer[0]), list(answer[1]), list(answer[2])
	if len(values) != len(ps) || len(ids) != len(packed) {
		return nil, fmt.Errorf("%w: answer about registrations", redisconn.ErrDamaged)
	}
	specs := make(map[string]string, len(ids))
	for i := range ids {
		id, okID := ids[i].(string)
		spec, okSpec := packed[i].(string)
		if !okID || !okSpec {
			return nil, fmt.Errorf("%w: a registration's spec is missing", redisconn.ErrDamaged)
		}
		specs[id] = spec
	}
	found := make([]*catalog.Registration, len(ps))
	for i, v := range values {
		value, ok := v.(string)
		if !ok {
			continue
		}
		entry, err := readRegistered(value)
		if err != nil {
			return nil, err
		}
		r := &catalog.Registration{Process: ps[i]}
		if r.RegisteredAt, err = redisconn.Stamp(entry.at); err != nil {
			return nil, err
		}
		// Parse the spec for each registration separately, because callers may change
		// the results.
		if r.Spec, err = pack.ReadSpec([]byte(specs[entry.spec])); err != nil {
			return nil, fmt.Errorf("%w: spec of %.80q on host %s: %w", redisconn.ErrDamaged, ps[i].Name, ps[i].Host, err)
		}
		found[i] = r
	}
	return found, nil
}

// list converts a part of a reply to a list. Redis may reply nil for an empty table.
func list(v any) []any {
	parts, _ := v.([]any)
	return parts
}

// registeredHostsScript reads the hosts on which processes of one name are registered.
//
// KEYS[1] registrations
// KEYS[2] index
// ARGV[1] start, in the syntax of ZRANGEBYLEX
// ARGV[2] end, in the same syntax
// ARGV[3] number of members to read
// Returns {number of members read, the last member read, the registered members}.
var registeredHostsScript = redis.NewScript(`
local members = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
if #members == 0 then return {0, '', {}} end
local found = {}
for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(members))) do
  if value then found[#found + 1] = members[i] end
end
return {#members, members[#members], found}
`)

// RegisteredHosts reads the index page by page and skips processes that are only
// reported.
func (s *Catalog) RegisteredHosts(ctx context.Context, namespace, name string, after procfleet.Host, limit int) ([]procfleet.Host, error) {
	if !catalog.ValidName(namespace) || !catalog.ValidName(name) {
		return nil, nil
	}
	const spare = 20 // reads more members than needed, because some may only be reported
	keys := s.keys.namespace(namespace)
	begin, end := "["+name+nameEnd, "("+name+"\x01"
	if !after.IsZero() {
		begin = "(" + member(name, after)
	}
	var hosts []procfleet.Host
	for len(hosts) < limit {
		looks := min(limit-len(hosts)+spare, redisconn.ScriptItems)
		c := &redisconn.Call{
			Script: registeredHostsScript, Keys: []string{keys.registrations(), keys.index()},
			Args: []any{begin, end, looks},
		}
		if err := s.conn.Run(ctx, c); err != nil {
			return nil, fmt.Errorf("read registered hosts: %w", err)
		}
		answer, err := c.Cmd.Slice()
		if err != nil || len(answer) != 3 {
			return nil, fmt.Errorf("%w: answer about registered hosts: %w", redisconn.ErrDamaged, err)
		}
		found, err := readMembers(namespace, list(answer[2]))
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			hosts = append(hosts, p.Host)
		}
		looked, _ := answer[0].(int64)
		last, _ := answer[1].(string)
		if int(looked) < looks {
			break
		}
		begin = "(" + last
	}
	return hosts[:min(len(hosts), max(limit, 0))], nil
}
