package rediscatalog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/catalog/internal/templates"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// changesScript reads the templates that were changed or deleted since a write.
//
// KEYS[1] templates
// KEYS[2] revisions
// KEYS[3] deleted
// KEYS[4] writes
// ARGV[1] token of that write; "" reads all templates
// ARGV[2] revision after which to continue; "" for the first call
// ARGV[3] maximum number of templates
// ARGV[4] number of bytes of packed templates after which to stop
// Returns {} if that write, or a deletion since, is no longer recorded. Otherwise
// {token of the last write, its revision, revision after which to continue or "" at the
// end, ids of deleted templates, packed templates}. Only the first call returns deleted
// ids.
var changesScript = redis.NewScript(`
local last = redis.call('ZREVRANGE', KEYS[4], 0, 0, 'WITHSCORES')
local token, after, deleted = last[1] or '', ARGV[2], {}
if after == '' and token == ARGV[1] then return {token, last[2] or '0', '', {}, {}} end
if ARGV[1] ~= '' then
  local known = redis.call('ZSCORE', KEYS[4], ARGV[1])
  if not known then return {} end
  if after == '' then
    after = known
    deleted = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. known, '+inf', 'LIMIT', 0, 10001)
    if #deleted > 10000 then return {} end
  end
end
if after == '' then after = '0' end
local ids = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
local packed, bytes, rest = {}, 0, ''
for i = 1, #ids, 2 do
  packed[#packed + 1] = redis.call('HGET', KEYS[1], ids[i]) or ''
  bytes = bytes + #packed[#packed]
  if bytes > tonumber(ARGV[4]) or #packed == tonumber(ARGV[3]) then
    rest = ids[i + 1]
    break
  end
end
return {token, last[2] or '0', rest, deleted, packed}
`)

// changes holds the templates that were changed or deleted since a write.
type changes struct {
	token    string // token of the last write
	revision int64  // revision of the last write
	rest     string // revision after which more changes may follow; "" at the end
	deleted  []int64
	changed  []catalog.Template
}

// errWriteUnknown means that Redis no longer records the changes since a write.
var errWriteUnknown = errors.New("rediscatalog: write is too old or was lost in a fail-over")

func (s *Catalog) changesSince(ctx context.Context, b catalog.Business, token, after string) (changes, error) {
	keys := s.keys.business(b)
	c := &redisconn.Call{
		Script: changesScript, Keys: []string{keys.templates(), keys.revisions(), keys.deleted(), keys.writes()},
		Args: []any{token, after, redisconn.ScriptItems, redisconn.ScriptBytes},
	}
	if err := s.conn.Run(ctx, c); err != nil {
		return changes{}, err
	}
	answer, err := c.Cmd.Slice()
	if err == nil && len(answer) == 0 {
		return changes{}, errWriteUnknown
	}
	if err != nil || len(answer) != 5 {
		return changes{}, fmt.Errorf("%w: answer about changes of processes: %w", redisconn.ErrDamaged, err)
	}
	return readChanges(answer)
}

func readChanges(answer []any) (changes, error) {
	token, _ := answer[0].(string)
	rest, _ := answer[2].(string)
	revision, err := readNumber(answer[1])
	if err != nil {
		return changes{}, fmt.Errorf("revision of processes: %w", err)
	}
	c := changes{token: token, revision: revision, rest: rest}
	for _, value := range list(answer[3]) {
		id, err := readNumber(value)
		if err != nil {
			return changes{}, fmt.Errorf("id of a process: %w", err)
		}
		c.deleted = append(c.deleted, id)
	}
	for _, value := range list(answer[4]) {
		packed, _ := value.(string)
		t, err := pack.ReadTemplate(packed)
		if err != nil {
			return changes{}, fmt.Errorf("read a process: %w", err)
		}
		c.changed = append(c.changed, *t)
	}
	return c, nil
}

// readNumber parses a number in a script's reply that is encoded as text.
func readNumber(value any) (int64, error) {
	text, _ := value.(string)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", redisconn.ErrDamaged, err)
	}
	return n, nil
}

// currentView returns a view of the business that contains every write that returned
// before the call. It takes one round trip if this process has searched the business
// before and few templates have changed since.
func (s *Catalog) currentView(ctx context.Context, b catalog.Business) (knownView, error) {
	c := s.cache(b)
	for {
		known := c.knownView()
		if known.View == nil {
			if err := s.load(ctx, b, c); err != nil {
				return knownView{}, err
			}
			continue
		}
		since, err := s.allSince(ctx, b, known.token)
		if errors.Is(err, errWriteUnknown) {
			c.forgetView(known.View)
			continue
		}
		if err != nil {
			return knownView{}, err
		}
		if now, ok := c.bringForward(known, since); ok {
			return now, nil
		}
	}
}

// allSince reads all changes since a write. It needs more than one script call only
// after hundreds of changes. The later calls may read changes that are newer than the
// last write of the result.
func (s *Catalog) allSince(ctx context.Context, b catalog.Business, token string) (changes, error) {
	all, err := s.changesSince(ctx, b, token, "")
	for rest := all.rest; rest != "" && err == nil; {
		var more changes
		more, err = s.changesSince(ctx, b, token, rest)
		all.changed, rest = append(all.changed, more.changed...), more.rest
	}
	return all, err
}

// load reads all templates into a view, or waits for a call that is reading them. The
// view still contains templates that were deleted during the read.
func (s *Catalog) load(ctx context.Context, b catalog.Business, c *businessCache) error {
	l, mine := c.beginLoading()
	if !mine {
		select {
		case <-l.done:
			if errors.Is(l.err, context.Canceled) || errors.Is(l.err, context.DeadlineExceeded) {
				return ctx.Err() // the context of the call that loads the view ended
			}
			return l.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	view, err := s.readAll(ctx, b)
	c.endLoading(l, view, err)
	return err
}

func (s *Catalog) readAll(ctx context.Context, b catalog.Business) (knownView, error) {
	part, err := s.changesSince(ctx, b, "", "")
	known := knownView{View: templates.NewView(), token: part.token, revision: part.revision}
	for err == nil {
		known.Apply(part.changed, nil)
		if part.rest == "" {
			return known, nil
		}
		part, err = s.changesSince(ctx, b, "", part.rest)
	}
	return knownView{}, err
}

// searchRounds is the maximum number of searches for one page. A search is repeated if
// a template on the page changed before it was read.
const searchRounds = 5

// SearchTemplates searches templates in two round trips: one for the changes since the
// previous search, one to read the page.
func (s *Catalog) SearchTemplates(ctx context.Context, b catalog.Business, q catalog.Search) ([]catalog.Template, int, error) {
	if err := q.Validate(); err != nil {
		return nil, 0, fmt.Errorf("search processes: %w", err)
	}
	if b.Validate() != nil {
		return nil, 0, ctx.Err()
	}
	for round := 1; ; round++ {
		view, err := s.currentView(ctx, b)
		if err != nil {
			return nil, 0, fmt.Errorf("search processes: %w", err)
		}
		ids, total := view.Search(q)
		page, changed, err := s.templatePage(ctx, b, ids, view.revision)
		if err != nil {
			return nil, 0, fmt.Errorf("search processes: %w", err)
		}
		if !changed {
			return page, total, nil
		}
		if round == searchRounds {
			return stillFound(page, q), total, nil
		}
	}
}

// FindTemplates searches template ids in one round trip, which reads the changes since
// the previous search.
func (s *Catalog) FindTemplates(ctx context.Context, b catalog.Business, q catalog.Search) ([]int64, error) {
	q.Limit = 1
	if err := q.Validate(); err != nil {
		return nil, fmt.Errorf("find processes: %w", err)
	}
	if b.Validate() != nil {
		return nil, ctx.Err()
	}
	view, err := s.currentView(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("find processes: %w", err)
	}
	q.Limit = math.MaxInt
	ids, _ := view.Search(q)
	return ids, nil
}

// stillFound returns the templates of a page that still match the search after they
// were read, in their order.
func stillFound(page []catalog.Template, q catalog.Search) []catalog.Template {
	now, position := templates.NewView(), make(map[int64]int, len(page))
	now.Apply(page, nil)
	for i := range page {
		position[page[i].ID] = i
	}
	q.Start = 0
	ids, _ := now.Search(q)
	found := make([]catalog.Template, len(ids))
	for i, id := range ids {
		found[i] = page[position[id]]
	}
	return found
}

// templatePage reads templates by id, and reports whether one of them has changed since
// a revision.
func (s *Catalog) templatePage(ctx context.Context, b catalog.Business, ids []int64, since int64) (page []catalog.Template, changed bool, err error) {
	if len(ids) == 0 {
		return nil, false, nil
	}
	there, err := s.readTemplates(ctx, b, ids)
	if err != nil {
		return nil, false, err
	}
	for i, t := range there.templates {
		if t == nil {
			changed = true
			continue
		}
		revision, err := readNumber(there.revisions[i])
		if err != nil {
			return nil, false, fmt.Errorf("revision of process %d: %w", t.ID, err)
		}
		changed = changed || revision > since
		page = append(page, *t)
	}
	return page, changed, nil
}
