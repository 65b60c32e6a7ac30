package rediscatalog

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// pageScript reads a page of the index of one namespace. If the namespace has dirty
// marks, it returns those instead.
//
// KEYS[1] registrations
// KEYS[2] specs
// KEYS[3] index
// KEYS[4] dirty marks
// ARGV[1] number of members to skip
// ARGV[2] maximum number of members to return
// ARGV[3] maximum number of dirty marks to return; 0 reads the page although there are
// dirty marks
// Returns {marked members, each followed by its token}, or {nothing, number of all
// members, the members, for each member its registration, ids of specs, packed specs}.
var pageScript = redis.NewScript(luaLookup + `
local dirty = redis.call('HRANDFIELD', KEYS[4], ARGV[3], 'WITHVALUES')
if #dirty > 0 then return {dirty} end
local members, size = {}, tonumber(ARGV[2])
if size > 0 then members = redis.call('ZRANGE', KEYS[3], ARGV[1], ARGV[1] + size - 1) end
return {dirty, redis.call('ZCARD', KEYS[3]), members, lookup(members)}
`)

// settleRounds is how often a page is read again because the namespace has dirty marks.
// While many hosts send their first reports, it always has some.
const settleRounds = 200

// maxEntryPage is the maximum number of entries of a page.
const maxEntryPage = 1000

// EntryPage settles the dirty marks of the namespace, so that the total is correct. It
// reads the page in one script call, and the reports of its hosts in further round
// trips of 500 hosts each.
func (s *Catalog) EntryPage(ctx context.Context, namespace string, start, limit int) ([]catalog.Entry, int, error) {
	if !catalog.ValidName(namespace) {
		return nil, 0, nil
	}
	for round := range settleRounds {
		page, err := s.indexPage(ctx, namespace, start, limit, round+1 == settleRounds)
		if err != nil {
			return nil, 0, fmt.Errorf("read entries of a namespace: %w", err)
		}
		if len(page.dirty.processes) > 0 {
			if err := s.settleDirtyMarks(ctx, page.dirty); err != nil {
				return nil, 0, err
			}
			continue
		}
		entries, err := s.join(ctx, page.members, page.registrations)
		if err != nil {
			return nil, 0, err
		}
		unknown := unknownOf(entries)
		if len(unknown) == 0 || round+1 == settleRounds {
			return entries, page.total, nil
		}
		// Such entries remain only after a fail-over that lost a write, or while a
		// report is being stored.
		if err := s.markDirty(ctx, namespace, unknown); err != nil {
			return nil, 0, err
		}
	}
	return nil, 0, nil // unreachable: the last round returns
}

// indexPage is a page of an index, or the dirty marks to settle first.
type indexPage struct {
	dirty         dirtyMarks
	total         int
	members       []catalog.Process
	registrations []*catalog.Registration
}

func (s *Catalog) indexPage(ctx context.Context, namespace string, start, limit int, anyhow bool) (indexPage, error) {
	atMost := redisconn.ScriptItems
	if anyhow {
		atMost = 0
	}
	size := min(max(limit, 0), maxEntryPage)
	keys := s.keys.namespace(namespace)
	c := &redisconn.Call{
		Script: pageScript,
		Keys:   []string{keys.registrations(), keys.specs(), keys.index(), keys.dirtyMarks()},
		Args:   []any{max(start, 0), size, atMost},
	}
	if err := s.conn.Run(ctx, c); err != nil {
		return indexPage{}, err
	}
	answer, err := c.Cmd.Slice()
	if err != nil || len(answer) != 1 && len(answer) != 6 {
		return indexPage{}, fmt.Errorf("%w: answer about a page: %w", redisconn.ErrDamaged, err)
	}
	if len(answer) == 1 {
		d, err := readDirtyMarks(namespace, list(answer[0]))
		return indexPage{dirty: d}, err
	}
	var page indexPage
	total, _ := answer[1].(int64)
	page.total = int(total)
	if page.members, err = readMembers(namespace, list(answer[2])); err != nil {
		return indexPage{}, err
	}
	page.registrations, err = readRegistrations(page.members, answer[3:])
	return page, err
}

func readDirtyMarks(namespace string, pairs []any) (dirtyMarks, error) {
	d := dirtyMarks{namespace: namespace}
	for i := 0; i+1 < len(pairs); i += 2 {
		m, _ := pairs[i].(string)
		token, _ := pairs[i+1].(string)
		p, err := readMember(namespace, m)
		if err != nil {
			return d, err
		}
		d.processes, d.tokens = append(d.processes, p), append(d.tokens, token)
	}
	return d, nil
}

// markDirty marks indexed processes that are neither registered nor reported, so that
// they are settled.
func (s *Catalog) markDirty(ctx context.Context, namespace string, ps []catalog.Process) error {
	part := indexPart{namespace: namespace}
	for _, p := range ps {
		part.gone = append(part.gone, member(p.Name, p.Host))
	}
	return s.conn.Run(ctx, part.touch(s, redisconn.NewToken()))
}

func unknownOf(entries []catalog.Entry) []catalog.Process {
	var unknown []catalog.Process
	for i := range entries {
		if entries[i].Registration == nil && entries[i].Reported == nil {
			unknown = append(unknown, entries[i].Process)
		}
	}
	return unknown
}

// Entries reads entries in two round trips for each 500 hosts.
func (s *Catalog) Entries(ctx context.Context, ps []catalog.Process) ([]catalog.Entry, error) {
	registrations, err := s.Registrations(ctx, ps)
	if err != nil {
		return nil, err
	}
	return s.join(ctx, ps, registrations)
}

// join combines registrations with the reported state of the processes.
func (s *Catalog) join(ctx context.Context, ps []catalog.Process, registrations []*catalog.Registration) ([]catalog.Entry, error) {
	known, err := s.reportsOf(ctx, hostsOf(ps))
	if err != nil {
		return nil, err
	}
	entries := make([]catalog.Entry, len(ps))
	for i, p := range ps {
		entries[i] = catalog.Entry{Process: p, Registration: registrations[i]}
		report := known[p.Host]
		if reported := report.find(p); reported != nil {
			entries[i].Reported, entries[i].ReportedAt, entries[i].AgentID = reported, report.At, report.AgentID
		}
	}
	return entries, nil
}
