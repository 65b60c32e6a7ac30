package rediscatalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/catalog/internal/templates"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// The store applies edits in this process and writes the result with a script, if the
// templates that it read have not changed in between. Each change of a template gives
// it a new revision, which is unique in the business: the time in microseconds, or the
// last revision plus one if the clock has not passed that.
//
// Each write has a token, and Redis stores the tokens of the last writes. With the
// token a write that is repeated after a lost reply is recognized, and a caller that
// has the templates as of a write can read the later changes. If a fail-over lost a
// write, its token is unknown, and the caller reads all templates again.

// templateIDsScript allots template ids.
//
// KEYS[1] the last id
// ARGV[1] highest id that the caller has seen
// ARGV[2] number of ids
// Returns the first of the ids.
var templateIDsScript = redis.NewScript(redisconn.LuaNow + `
local last = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), tonumber(ARGV[1]))
redis.call('SET', KEYS[1], text(last + ARGV[2]))
return last + 1
`)

// templatesScript reads templates.
//
// KEYS[1] templates
// KEYS[2] revisions
// ARGV[1..] ids, possibly none
// Returns {microseconds of the store's clock, the packed template of each id, the
// revision of each id}.
var templatesScript = redis.NewScript(redisconn.LuaNow + `
if #ARGV == 0 then return {text(now()), {}, {}} end
return {text(now()), redis.call('HMGET', KEYS[1], unpack(ARGV)), redis.call('ZMSCORE', KEYS[2], unpack(ARGV))}
`)

// changeTemplatesScript creates, changes and deletes templates, all or none. It stores
// the tokens of at least the last 1000 writes and of the last ten minutes, and the
// deletions since the oldest of these writes.
//
// KEYS[1] templates
// KEYS[2] revisions
// KEYS[3] deleted
// KEYS[4] claims
// KEYS[5] writes
// ARGV[1] token of this write
// ARGV[2] number of templates; for each: id, its revision ("" if new), and the packed
// template ("" deletes it)
// ARGV[..] number of released claims, followed by the claims
// ARGV[..] number of new claims; for each: its text, the id of its template, and
// "moved" if another template in this call had it
// Returns {1} if the write is done, now or by an earlier attempt; {0} if a template has
// another revision; {2, number of a claim, id of its template} if another template has
// a claim.
var changeTemplatesScript = redis.NewScript(redisconn.LuaNow + `
if redis.call('ZSCORE', KEYS[5], ARGV[1]) then return {1} end
local at = 1
local function take() at = at + 1 return ARGV[at] end
local changes, released, claimed = {}, {}, {}
for i = 1, tonumber(take()) do
  local id, was, packed = take(), take(), take()
  if (redis.call('ZSCORE', KEYS[2], id) or '') ~= was then return {0} end
  if was == '' and redis.call('ZSCORE', KEYS[3], id) then return {0} end
  changes[i] = {id, packed}
end
for i = 1, tonumber(take()) do released[i] = take() end
for i = 1, tonumber(take()) do
  local claim, id, moved = take(), take(), take()
  local other = moved == '' and redis.call('HGET', KEYS[4], claim)
  if other then return {2, i, tonumber(other)} end
  claimed[i] = {claim, id}
end

for _, claim in ipairs(released) do redis.call('HDEL', KEYS[4], claim) end
for _, claim in ipairs(claimed) do redis.call('HSET', KEYS[4], claim[1], claim[2]) end
local time, revision = now(), tonumber(redis.call('ZREVRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2] or 0)
revision = math.max(time, revision + 1)
for i, change in ipairs(changes) do
  local id, packed = change[1], change[2]
  revision = revision + 1
  if packed == '' then
    redis.call('HDEL', KEYS[1], id)
    redis.call('ZREM', KEYS[2], id)
    redis.call('ZADD', KEYS[3], text(revision), id)
  else
    redis.call('HSET', KEYS[1], id, packed)
    redis.call('ZADD', KEYS[2], text(revision), id)
  end
end
redis.call('ZADD', KEYS[5], text(revision), ARGV[1])

local spare = redis.call('ZCARD', KEYS[5]) - 1000
local past = spare > 0 and redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', text(time - 600000000), 'LIMIT', 0, math.min(spare, 100)) or {}
if #past > 0 then
  redis.call('ZREM', KEYS[5], unpack(past))
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', redis.call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2])
end
return {1}
`)

// EditTemplates edits templates, in two round trips if there are no concurrent edits of
// the same templates.
func (s *Catalog) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	if err := errors.Join(b.Validate(), catalog.ValidateEdits(edits)); err != nil {
		return nil, fmt.Errorf("edit processes: %w", err)
	}
	if len(edits) == 0 {
		return nil, ctx.Err()
	}
	var done []catalog.Edited
	err := redisconn.Compete(ctx, func() (written bool, err error) {
		done, written, err = s.editOnce(ctx, b, edits)
		return written, err
	})
	if err != nil {
		return nil, fmt.Errorf("edit processes: %w", err)
	}
	return done, nil
}

// editOnce applies edits to the templates that it reads and writes them, unless another
// caller has changed the templates in between.
func (s *Catalog) editOnce(ctx context.Context, b catalog.Business, edits []catalog.Edit) (done []catalog.Edited, written bool, err error) {
	var ids []int64
	for _, e := range edits {
		if e.ID != 0 {
			ids = append(ids, e.ID)
		}
	}
	there, firstID, err := s.readAndAllot(ctx, b, ids, len(edits)-len(ids))
	if err != nil {
		return nil, false, err
	}
	old, was := make([]*catalog.Template, len(edits)), make([]string, len(edits))
	for i, e := range edits {
		if e.ID != 0 {
			old[i], was[i] = there.next()
		}
	}
	newID := func() int64 { firstID++; return firstID - 1 }
	batch, err := templates.Do(edits, old, newID, there.at)
	if err != nil {
		return nil, false, err
	}
	change := templateChange{released: batch.Released, claimed: batch.Claimed}
	for i := range batch.Templates {
		t := &batch.Templates[i]
		change.add(t.ID, was[i], pack.Template(t))
	}
	written, err = s.changeTemplates(ctx, b, &change, batch)
	return batch.Done, written, err
}

// DeleteTemplate deletes a template, in two round trips if there are no concurrent
// edits of it.
func (s *Catalog) DeleteTemplate(ctx context.Context, b catalog.Business, id int64) (existed bool, err error) {
	if b.Validate() != nil {
		return false, ctx.Err()
	}
	err = redisconn.Compete(ctx, func() (bool, error) {
		there, err := s.readTemplates(ctx, b, []int64{id})
		if err != nil {
			return false, err
		}
		t, was := there.next()
		if existed = t != nil; !existed { // also if another call has deleted it
			return true, nil
		}
		if len(t.Modules) > 0 {
			return false, catalog.ErrBound
		}
		change := templateChange{released: templates.Claims(t)}
		change.add(id, was, nil)
		return s.changeTemplates(ctx, b, &change, nil)
	})
	if err != nil {
		return false, fmt.Errorf("delete process %d: %w", id, err)
	}
	return existed, nil
}

// templateChange holds the arguments of [changeTemplatesScript].
type templateChange struct {
	ids      []int64
	args     []any // arguments about templates, in the script's form
	released []string
	claimed  []templates.Claim
}

func (c *templateChange) add(id int64, was string, packed []byte) {
	c.ids = append(c.ids, id)
	c.args = append(c.args, id, was, packed)
}

// changeTemplates writes a change. It returns false if another caller has changed the
// templates. If another template has a claim, the error is [templates.Batch.Taken] of
// the batch.
func (s *Catalog) changeTemplates(ctx context.Context, b catalog.Business, change *templateChange, batch *templates.Batch) (bool, error) {
	keys := s.keys.business(b)
	c := &redisconn.Call{
		Script: changeTemplatesScript,
		Keys:   []string{keys.templates(), keys.revisions(), keys.deleted(), keys.claims(), keys.writes()},
		Args:   append([]any{redisconn.NewToken(), len(change.ids)}, change.args...),
	}
	c.Args = append(c.Args, len(change.released))
	for _, text := range change.released {
		c.Args = append(c.Args, text)
	}
	c.Args = append(c.Args, len(change.claimed))
	for _, claim := range change.claimed {
		moved := ""
		if claim.Moved {
			moved = "moved"
		}
		c.Args = append(c.Args, claim.Text, change.ids[claim.Edit], moved)
	}
	if err := s.conn.RunDurably(ctx, c); err != nil {
		return false, err
	}
	answer, err := c.Cmd.Int64Slice()
	switch {
	case err != nil:
		return false, err
	case len(answer) == 1:
		return answer[0] == 1, nil
	case len(answer) == 3 && batch != nil && answer[1] >= 1 && int(answer[1]) <= len(change.claimed):
		return false, batch.Taken(change.claimed[answer[1]-1], answer[2])
	}
	return false, fmt.Errorf("%w: answer about processes: %v", redisconn.ErrDamaged, answer)
}

// Templates reads templates in one round trip, with a script call for each 500
// templates.
func (s *Catalog) Templates(ctx context.Context, b catalog.Business, ids []int64) ([]*catalog.Template, error) {
	if len(ids) == 0 {
		return nil, ctx.Err()
	}
	if b.Validate() != nil {
		return make([]*catalog.Template, len(ids)), ctx.Err()
	}
	there, err := s.readTemplates(ctx, b, ids)
	if err != nil {
		return nil, fmt.Errorf("read processes: %w", err)
	}
	return there.templates, nil
}

// storedTemplates holds templates as they were read, nil for ids that do not exist,
// with their revisions.
type storedTemplates struct {
	at        time.Time // store's time before the read
	templates []*catalog.Template
	revisions []string
}

// next removes and returns the first template.
func (st *storedTemplates) next() (t *catalog.Template, revision string) {
	t, revision = st.templates[0], st.revisions[0]
	st.templates, st.revisions = st.templates[1:], st.revisions[1:]
	return t, revision
}

func (s *Catalog) readTemplates(ctx context.Context, b catalog.Business, ids []int64) (*storedTemplates, error) {
	calls := s.readCalls(b, ids)
	if err := s.conn.Run(ctx, calls...); err != nil {
		return nil, err
	}
	return storedIn(calls)
}

// readAndAllot reads templates and allots n new ids; it returns the first id. Allotting
// is as durable as writing a template, because an id that a fail-over lost would be
// allotted twice.
func (s *Catalog) readAndAllot(ctx context.Context, b catalog.Business, ids []int64, n int) (*storedTemplates, int64, error) {
	if n == 0 {
		there, err := s.readTemplates(ctx, b, ids)
		return there, 0, err
	}
	calls := s.readCalls(b, ids)
	allot := &redisconn.Call{Script: templateIDsScript, Keys: []string{s.keys.templateIDs()}, Args: []any{s.highestID.Load(), n}}
	if err := s.conn.RunDurably(ctx, append([]*redisconn.Call{allot}, calls...)...); err != nil {
		return nil, 0, err
	}
	first, err := allot.Number()
	if err != nil {
		return nil, 0, err
	}
	s.highestID.Raise(first + int64(n) - 1)
	there, err := storedIn(calls)
	return there, first, err
}

// readCalls returns the calls that read templates. It returns at least one call, which
// reads the time.
func (s *Catalog) readCalls(b catalog.Business, ids []int64) []*redisconn.Call {
	keys := s.keys.business(b)
	var calls []*redisconn.Call
	for begin := 0; begin < len(ids) || begin == 0; begin += redisconn.ScriptItems {
		c := &redisconn.Call{Script: templatesScript, Keys: []string{keys.templates(), keys.revisions()}}
		for _, id := range ids[begin:min(begin+redisconn.ScriptItems, len(ids))] {
			c.Args = append(c.Args, id)
		}
		calls = append(calls, c)
	}
	return calls
}

// storedIn parses the replies to readCalls.
func storedIn(calls []*redisconn.Call) (*storedTemplates, error) {
	st := &storedTemplates{}
	for _, c := range calls {
		answer, err := c.Cmd.Slice()
		if err != nil || len(answer) != 3 {
			return nil, fmt.Errorf("%w: answer about processes: %w", redisconn.ErrDamaged, err)
		}
		if err := st.add(answer); err != nil {
			return nil, err
		}
	}
	return st, nil
}

func (st *storedTemplates) add(answer []any) error {
	us, err := readNumber(answer[0])
	if err != nil {
		return fmt.Errorf("time of an answer about processes: %w", err)
	}
	if st.at.IsZero() {
		st.at = redisconn.Moment(us)
	}
	revisions := list(answer[2])
	for i, value := range list(answer[1]) {
		var t *catalog.Template
		if packed, ok := value.(string); ok {
			if t, err = pack.ReadTemplate(packed); err != nil {
				return fmt.Errorf("read a process: %w", err)
			}
		}
		revision, _ := revisions[i].(string)
		st.templates, st.revisions = append(st.templates, t), append(st.revisions, revision)
	}
	return nil
}
