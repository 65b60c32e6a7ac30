package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// stageScript writes chunks of a task that is too big for a single call. They become a
// task when its head is written. If several makers create a task with the same id, the
// one that began last owns the writer key, and the calls of the others fail.
//
// KEYS[1] head
// KEYS[2] writer
// KEYS[3..] chunks
// ARGV[1] id of the maker
// ARGV[2] expiry of all keys, in milliseconds since the Unix epoch
// ARGV[3] "first" in the first call of a maker
// ARGV[4..] packed chunks, in the order of KEYS
// Returns "staged", "overtaken" or "exists".
var stageScript = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 1 then return 'exists' end
if ARGV[3] == 'first' then
  redis.call('SET', KEYS[2], ARGV[1], 'PXAT', ARGV[2])
elseif redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 'overtaken'
end
for i = 3, #KEYS do redis.call('SET', KEYS[i], ARGV[i + 1], 'PXAT', ARGV[2]) end
return 'staged'
`)

// abandonScript deletes staged chunks that will not become part of a task.
//
// KEYS[1] head
// KEYS[2] writer
// KEYS[3..] chunks
// ARGV[1] id of the maker
// Returns the number of keys that it removed.
var abandonScript = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
local removed = 0
for i = 2, #KEYS do removed = removed + redis.call('UNLINK', KEYS[i]) end
return removed
`)

// createScript creates a task: it writes the last chunks, the marks and the head.
// Without the head the other keys have no effect.
//
// KEYS[1] head
// KEYS[2] writer
// KEYS[3] marks
// KEYS[4..] chunks to write, then those that were staged
// ARGV[1] id of the maker
// ARGV[2] expiry of all keys, in milliseconds since the Unix epoch
// ARGV[3] number of staged chunks, some of which a fail-over may have lost
// ARGV[4] number of items
// ARGV[5] mark of a pending item
// ARGV[6] latest time of creation (NotAfter), in microseconds of this server's clock,
// or ""
// ARGV[7] earliest time of creation, in microseconds of this server's clock. Before it
// the clock has stepped back, and the sweep may have removed the number from its index.
// ARGV[8] latest time of creation, for the same reason
// ARGV[9..] packed chunks to write, then fields and values of the head
// Returns "created" (also if this maker created it before), "exists", "overtaken",
// "expired" (after ARGV[6]) or "late" (before ARGV[7] or after ARGV[8]).
var createScript = redis.NewScript(redisconn.LuaNow + `
local there = redis.call('HGET', KEYS[1], 'maker')
if there then return there == ARGV[1] and 'created' or 'exists' end
local time = now()
if ARGV[6] ~= '' and time > tonumber(ARGV[6]) then return 'expired' end
if time < tonumber(ARGV[7]) or time > tonumber(ARGV[8]) then return 'late' end
local at, staged = 9, tonumber(ARGV[3])
if staged > 0 then
  if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 'overtaken' end
  for i = #KEYS - staged + 1, #KEYS, 1000 do -- unpack fails for some 8,000
    local last = math.min(i + 999, #KEYS)
    if redis.call('EXISTS', unpack(KEYS, i, last)) <= last - i then return 'overtaken' end
  end
end
for i = 4, #KEYS - staged do
  redis.call('SET', KEYS[i], ARGV[at], 'PXAT', ARGV[2])
  at = at + 1
end
redis.call('SET', KEYS[3], string.rep(ARGV[5], tonumber(ARGV[4])), 'PXAT', ARGV[2])
redis.call('HSET', KEYS[1], 'maker', ARGV[1], unpack(ARGV, at))
redis.call('PEXPIREAT', KEYS[1], ARGV[2])
if staged > 0 then redis.call('DEL', KEYS[2]) end
return 'created'
`)

// Create stores the task in two steps: its entry in the indexes, then the task. With an
// idempotency key, Create first stores the record of the key, so that a repeated
// request uses the same number. If a repeated request writes the task, Create enters
// the task into the indexes again.
func (s *Store) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	m := &maker{store: s, draft: &d, nonce: uuid.NewString()}
	if full := s.checkHeadroom(ctx, &d); full != nil {
		if err := m.findRepeat(ctx); err != nil || m.found == nil {
			return procfleet.Task{}, false, fmt.Errorf("create a task: %w", cmp.Or(err, full))
		}
		return *m.found, false, nil
	}
	t, created, err := m.create(ctx)
	if err != nil {
		return m.uncertain, false, fmt.Errorf("create a task: %w", err)
	}
	return t, created, nil
}

// maker creates one task.
type maker struct {
	store *Store
	draft *taskstore.Draft
	nonce string
	found *procfleet.Task // the task that an earlier request with the same key created
	// continued means that an earlier request chose the number.
	continued bool
	// Between earliest and latest the number is certainly in the sweep index. The sweep
	// might never visit a task that is created at another time.
	earliest, latest time.Time
	// uncertain is a task that may or may not have been created.
	uncertain procfleet.Task
}

// makeWithin returns the time limit for creating a task, from the moment at which its
// number was entered into the index. The sweep removes a number without a task at its first visit or later.
// The remaining tenth of the time allows for clock differences between the servers of a
// cluster.
func makeWithin(visit time.Duration) time.Duration { return visit - visit/10 }

// maxStepBack is how far the clock may step back before a task is created. The sweep
// treats a visit that is more than MaxVisit ahead as due.
const maxStepBack = taskstore.MaxVisit / 2

// makeAttempts is the maximum number of attempts while another maker creates a task
// with the same id; they take about 2 s in total.
const makeAttempts = 12

func (m *maker) create(ctx context.Context) (procfleet.Task, bool, error) {
	for attempt := range makeAttempts {
		n, now, err := m.number(ctx)
		if err != nil {
			return procfleet.Task{}, false, err
		}
		if m.found != nil {
			return *m.found, false, nil
		}
		t := m.task(n, now)
		answer, err := m.write(ctx, &t)
		switch {
		case err != nil:
			return procfleet.Task{}, false, err
		case answer == "created":
			if err := m.enrolAgain(ctx, n); err != nil {
				m.uncertain = t
				return procfleet.Task{}, false, err
			}
			return t, true, nil
		case answer == "expired":
			// The number remains in the indexes and possibly in the record of the key.
			// Without a task neither has an effect, as after a crash of the dispatcher.
			return procfleet.Task{}, false, taskstore.ErrExpired
		case answer != "exists" && !redisconn.Pause(ctx, attempt): // overtaken or late
			return procfleet.Task{}, false, ctx.Err()
		}
		// If the task exists and the draft has a key, the next attempt finds the task.
		// Without a key, the number was allotted twice, which happens if a fail-over
		// loses the last value of the clock key. The next attempt allots another
		// number.
	}
	return procfleet.Task{}, false, fmt.Errorf("%w: %d attempts were overtaken by other dispatchers or took too long", taskstore.ErrUnavailable, makeAttempts)
}

// number returns the number of the task and the time of its acceptance, after it has
// stored the index entry and the idempotency record. If it finds the task of an earlier
// request, it sets m.found and returns zero values.
func (m *maker) number(ctx context.Context) (procfleet.Number, time.Time, error) {
	if m.draft.IdempotencyKey == "" {
		return m.enrol(ctx, 0, taskstore.FirstVisitOf(m.draft.Timeout))
	}
	fresh, now, err := m.store.tick(ctx)
	if err != nil {
		return 0, time.Time{}, err
	}
	n, err := m.claim(ctx, fresh, now.Add(lifetime(m.draft)))
	if err != nil || m.found != nil {
		return 0, time.Time{}, err
	}
	visit := taskstore.FirstVisitOf(m.draft.Timeout)
	if m.continued = n != fresh; m.continued {
		visit = taskstore.FirstVisit // lets the sweep remove an old number soon if the task is never created
	}
	_, _, err = m.enrol(ctx, n, visit)
	return n, now, err
}

// enrol enters a number into the indexes and sets the interval in which its task may be
// created.
func (m *maker) enrol(ctx context.Context, n procfleet.Number, visit time.Duration) (procfleet.Number, time.Time, error) {
	n, now, err := m.store.enrol(ctx, n, m.draft, visit)
	m.earliest, m.latest = now.Add(-maxStepBack), now.Add(makeWithin(visit))
	return n, now, err
}

// enrolAgain enters the number of a task into the indexes again if an earlier request
// chose the number. A sweep that read the index before the task was written may since
// have removed the number as one without a task.
func (m *maker) enrolAgain(ctx context.Context, n procfleet.Number) error {
	if !m.continued {
		return nil
	}
	_, _, err := m.store.enrol(ctx, n, m.draft, taskstore.FirstVisitOf(m.draft.Timeout))
	return err
}

// lifetime returns the time from the acceptance of a task to its expiry.
func lifetime(d *taskstore.Draft) time.Duration { return d.Timeout + d.Retention }

// claim makes the idempotency key point to a number and returns that number: a new one,
// or the number that the key already has if its task was never written. If it finds the
// task of an earlier request, it sets m.found and stops.
func (m *maker) claim(ctx context.Context, fresh procfleet.Number, expires time.Time) (procfleet.Number, error) {
	read, want := procfleet.Number(0), fresh
	for {
		has, err := m.store.claim(ctx, m.draft, read, want, expires)
		if err != nil || has == want {
			return want, err
		}
		free, err := m.free(ctx, has)
		if err != nil || m.found != nil {
			return 0, err
		}
		read, want = has, has
		if free {
			want = fresh
		}
	}
}

// free reads the task to which an idempotency key points. It returns true if the key
// may point to another task. Otherwise it returns false, and sets m.found if the task
// exists; if it does not exist, it must be created under its number.
func (m *maker) free(ctx context.Context, has procfleet.Number) (bool, error) {
	t, body, err := m.store.taskAndBody(ctx, has.TaskID())
	switch {
	case errors.Is(err, taskstore.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case t.State == procfleet.TaskRejected:
		return true, nil
	case body != m.draft.BodyHash:
		return false, taskstore.ErrConflict
	}
	m.found = &t
	return false, nil
}

func (m *maker) task(n procfleet.Number, now time.Time) procfleet.Task {
	d := m.draft
	t := procfleet.Task{
		ID: n.TaskID(), Number: n, State: procfleet.TaskAccepted, Lane: d.Lane, Chunks: len(d.Chunks),
		CreatedAt: now, Deadline: now.Add(d.Timeout), ExpiresAt: now.Add(lifetime(d)),
		Actions: slices.Clone(d.Actions), Dialect: d.Dialect, Application: d.Application, Business: d.Business, Callback: d.Callback, Origin: d.Origin, RetryOf: d.RetryOf, UndoOf: d.UndoOf, Trace: d.Trace,
		Counts: make(procfleet.Counts, len(procfleet.States())),
	}
	if d.Rollout != nil {
		t.Rollout = pack.NewRollout(*d.Rollout, now)
	}
	for i := range d.Chunks {
		t.Items += len(d.Chunks[i].Items)
	}
	for _, s := range procfleet.States() {
		t.Counts[s] = 0
	}
	t.Counts[procfleet.StatePending] = t.Items
	return t
}

// write writes the chunks and the head, and returns the reply of [createScript]. It
// deletes chunks that did not become a task.
func (m *maker) write(ctx context.Context, t *procfleet.Task) (answer string, err error) {
	groups, err := group(m.draft.Chunks)
	if err != nil {
		return "", err
	}
	last := len(groups) - 1
	for i, g := range groups[:last] {
		c := m.stageCall(t, g, i == 0)
		if err = m.store.conn.Run(ctx, c); err == nil {
			answer, err = c.Cmd.Text()
		}
		if err != nil {
			m.abandon(ctx, t, groups[:i+1])
			return "", err
		}
		if answer != "staged" {
			return answer, nil
		}
	}
	c, err := m.createCall(t, groups)
	if err != nil {
		return "", err
	}
	if err = m.store.conn.RunDurably(ctx, c); err != nil {
		if m.store.conn.SendsTwice() || c.MayHaveRun(err) {
			m.uncertain = *t
		}
		m.abandon(ctx, t, groups[:last])
		return "", err
	}
	if answer, err = c.Cmd.Text(); answer == "expired" || answer == "late" {
		m.abandon(ctx, t, groups[:last])
	}
	return answer, err
}

func (m *maker) stageCall(t *procfleet.Task, g chunkGroup, first bool) *redisconn.Call {
	keys := m.store.keys.task(t.ID)
	turn := "next"
	if first {
		turn = "first"
	}
	return &redisconn.Call{
		Script: stageScript,
		Keys:   append([]string{keys.head(), keys.writer()}, g.keys(keys)...),
		Args:   append([]any{m.nonce, expiry(t.ExpiresAt), turn}, g.packed...),
	}
}

// createCall returns the call that writes the last group of chunks and creates the
// task.
func (m *maker) createCall(t *procfleet.Task, groups []chunkGroup) (*redisconn.Call, error) {
	keys := m.store.keys.task(t.ID)
	fields, err := newHead(t, m.draft)
	if err != nil {
		return nil, err
	}
	last := len(groups) - 1
	g := groups[last]
	c := &redisconn.Call{Script: createScript, Keys: append([]string{keys.head(), keys.writer(), keys.marks()}, g.keys(keys)...)}
	for _, staged := range groups[:last] {
		c.Keys = append(c.Keys, staged.keys(keys)...)
	}
	notAfter := ""
	if at := m.draft.NotAfter; !at.IsZero() {
		notAfter = strconv.FormatInt(at.UnixMicro(), 10)
	}
	c.Args = append([]any{
		m.nonce, expiry(t.ExpiresAt), g.first, t.Items, string(rune(pack.Pending)),
		notAfter, m.earliest.UnixMicro(), m.latest.UnixMicro(),
	}, g.packed...)
	c.Args = append(c.Args, fields...)
	return c, nil
}

// abandon tries once to delete staged chunks. Otherwise they occupy memory until they
// expire.
func (m *maker) abandon(ctx context.Context, t *procfleet.Task, groups []chunkGroup) {
	if len(groups) == 0 {
		return
	}
	keys := m.store.keys.task(t.ID)
	c := &redisconn.Call{Script: abandonScript, Keys: []string{keys.head(), keys.writer()}, Args: []any{m.nonce}}
	for _, g := range groups {
		c.Keys = append(c.Keys, g.keys(keys)...)
	}
	if err := m.store.conn.Run(ctx, c); err != nil {
		m.store.conn.Log().WithField("task", t.ID).WithError(err).Warn("orphan chunks not removed, left to expire")
	}
}

// chunkGroup is a sequence of packed chunks that one call writes.
type chunkGroup struct {
	first  int
	packed []any
	bytes  int
}

func (g *chunkGroup) keys(t taskKeys) []string {
	keys := make([]string, len(g.packed))
	for i := range keys {
		keys[i] = t.chunk(g.first + i)
	}
	return keys
}

// group divides the chunks into groups of about 1 MiB, so that no call blocks Redis for
// long. It returns at least one group.
func group(chunks []procfleet.Chunk) ([]chunkGroup, error) {
	const enough = 1 << 20
	groups := []chunkGroup{{}}
	for i := range chunks {
		packed, err := pack.Chunk(&chunks[i])
		if err != nil {
			return nil, err
		}
		g := &groups[len(groups)-1]
		if len(g.packed) > 0 && g.bytes+len(packed) > enough {
			groups = append(groups, chunkGroup{first: i})
			g = &groups[len(groups)-1]
		}
		g.packed = append(g.packed, packed)
		g.bytes += len(packed)
	}
	return groups, nil
}
