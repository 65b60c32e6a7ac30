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
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// stageScript writes chunks of a task that is too big for one call, before
// its head makes them a task. Of several makers of one id the last to begin
// has the writer key; the calls of the others fail.
//
// KEYS[1] head
// KEYS[2] writer
// KEYS[3..] chunks
// ARGV[1] maker
// ARGV[2] when all expires, in milliseconds since the epoch
// ARGV[3] "first" in the maker's first call
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

// abandonScript deletes chunks that will not become a task.
//
// KEYS[1] head
// KEYS[2] writer
// KEYS[3..] chunks
// ARGV[1] maker
// Returns the number of keys that it removed.
var abandonScript = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
local removed = 0
for i = 2, #KEYS do removed = removed + redis.call('UNLINK', KEYS[i]) end
return removed
`)

// createScript makes a task: the last chunks, the marks, and the head without
// which nothing of it counts.
//
// KEYS[1] head
// KEYS[2] writer
// KEYS[3] marks
// KEYS[4..] chunks to write, then those that were staged
// ARGV[1] maker
// ARGV[2] when all expires, in milliseconds since the epoch
// ARGV[3] number of staged chunks; a fail-over may have lost some
// ARGV[4] number of items
// ARGV[5] mark of a pending item
// ARGV[6] microseconds of this server's clock after which no task is made, or ""
// ARGV[7] microseconds of this server's clock before which no task of this number
// is made: the clock has stepped back, and the sweep may have settled the number
// ARGV[8] microseconds after which none is made, for the same reason
// ARGV[9..] packed chunks to write, then fields and values of the head
// Returns "created" (also if this maker did it before), "exists", "overtaken",
// "expired" (ARGV[6] has passed) or "late" (not between ARGV[7] and ARGV[8]).
var createScript = redis.NewScript(luaNow + `
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

// Create stores the task in two steps: its entry in the indexes, then the
// task. With an idempotency key the record of the key comes before both, so
// that a repeat of the request finds the id that was chosen. A task that a
// repeat makes is entered once more.
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

// maker makes one task.
type maker struct {
	store *Store
	draft *taskstore.Draft
	nonce string
	found *procfleet.Task // the task that the same request made before
	// continued means that the number is older than this request.
	continued bool
	// Between earliest and latest the number is in the index for certain: a task
	// that is made at another time might never be visited.
	earliest, latest time.Time
	// uncertain is the task of which it is not known whether it was made.
	uncertain procfleet.Task
}

// makeWithin is how long after a number was entered into the index its task may
// be made. The sweep settles a number without a task at its first visit at the
// earliest. The tenth that is left is for the clocks of a cluster's servers.
func makeWithin(visit time.Duration) time.Duration { return visit - visit/10 }

// maxStepBack is how far the clock may step back before a task is made. The
// sweep takes a visit that is further ahead than MaxVisit for due.
const maxStepBack = taskstore.MaxVisit / 2

// makeAttempts is how often a maker retries after another maker of the same id
// was faster, for about two seconds altogether.
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
			// The request is in the indexes, and maybe under its key. Both
			// mean nothing without a task, as after a dispatcher's death.
			return procfleet.Task{}, false, taskstore.ErrExpired
		case answer != "exists" && !pause(ctx, attempt): // overtaken or late
			return procfleet.Task{}, false, ctx.Err()
		}
		// If it exists, then with a key the next round finds it; without one
		// the number was given twice, which a clock that lost its end can do.
	}
	return procfleet.Task{}, false, fmt.Errorf("%w: %d attempts were overtaken by other dispatchers or took too long", taskstore.ErrUnavailable, makeAttempts)
}

// number returns the number for the task and the time of its acceptance, with
// the task's entry in the indexes and the idempotency record made; none if
// the request's task was found.
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
		visit = taskstore.FirstVisit // settles an old number at once if there is no task yet
	}
	_, _, err = m.enrol(ctx, n, visit)
	return n, now, err
}

// enrol enters a number into the indexes and sets the moments between which
// its task may be made.
func (m *maker) enrol(ctx context.Context, n procfleet.Number, visit time.Duration) (procfleet.Number, time.Time, error) {
	n, now, err := m.store.enrol(ctx, n, m.draft, visit)
	m.earliest, m.latest = now.Add(-maxStepBack), now.Add(makeWithin(visit))
	return n, now, err
}

// enrolAgain is for a task that was just written under an old number: a sweep
// that read the index before may have put the number's visit forward, and then
// settled it as one whose task will never be written.
func (m *maker) enrolAgain(ctx context.Context, n procfleet.Number) error {
	if !m.continued {
		return nil
	}
	_, _, err := m.store.enrol(ctx, n, m.draft, taskstore.FirstVisitOf(m.draft.Timeout))
	return err
}

// lifetime is from the acceptance of a task to the moment when it is forgotten.
func lifetime(d *taskstore.Draft) time.Duration { return d.Timeout + d.Retention }

// claim makes the idempotency key point to a number: a fresh one, or the one
// that the key has if its task was never written. It stops when it finds the
// request's task.
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

// free reads the task of an idempotency key. It returns true if the key may get
// another task, and false if the task must be made under its number or is the
// task that the request made before, in m.found.
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
		Actions: slices.Clone(d.Actions), Dialect: d.Dialect, Application: d.Application, Business: d.Business, Callback: d.Callback, Origin: d.Origin, Trace: d.Trace,
		Counts: make(procfleet.Counts, len(procfleet.States())),
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

// write writes the chunks and the head, and returns what [createScript]
// answers. Chunks that did not become a task are removed again.
func (m *maker) write(ctx context.Context, t *procfleet.Task) (answer string, err error) {
	groups, err := group(m.draft.Chunks)
	if err != nil {
		return "", err
	}
	last := len(groups) - 1
	for i, g := range groups[:last] {
		c := m.stageCall(t, g, i == 0)
		if err = m.store.run(ctx, c); err == nil {
			answer, err = c.cmd.Text()
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
	if err = m.store.runDurably(ctx, c); err != nil {
		if m.store.sendsTwice() || c.mayHaveRun(err) {
			m.uncertain = *t
		}
		m.abandon(ctx, t, groups[:last])
		return "", err
	}
	if answer, err = c.cmd.Text(); answer == "expired" || answer == "late" {
		m.abandon(ctx, t, groups[:last])
	}
	return answer, err
}

func (m *maker) stageCall(t *procfleet.Task, g chunkGroup, first bool) *call {
	keys := m.store.keys.task(t.ID)
	turn := "next"
	if first {
		turn = "first"
	}
	return &call{
		script: stageScript,
		keys:   append([]string{keys.head(), keys.writer()}, g.keys(keys)...),
		args:   append([]any{m.nonce, expiry(t.ExpiresAt), turn}, g.packed...),
	}
}

// createCall writes the last group and makes a task of it and the others.
func (m *maker) createCall(t *procfleet.Task, groups []chunkGroup) (*call, error) {
	keys := m.store.keys.task(t.ID)
	fields, err := newHead(t, m.draft)
	if err != nil {
		return nil, err
	}
	last := len(groups) - 1
	g := groups[last]
	c := &call{script: createScript, keys: append([]string{keys.head(), keys.writer(), keys.marks()}, g.keys(keys)...)}
	for _, staged := range groups[:last] {
		c.keys = append(c.keys, staged.keys(keys)...)
	}
	notAfter := ""
	if at := m.draft.NotAfter; !at.IsZero() {
		notAfter = strconv.FormatInt(at.UnixMicro(), 10)
	}
	c.args = append([]any{
		m.nonce, expiry(t.ExpiresAt), g.first, t.Items, string(rune(pack.Pending)),
		notAfter, m.earliest.UnixMicro(), m.latest.UnixMicro(),
	}, g.packed...)
	c.args = append(c.args, fields...)
	return c, nil
}

// abandon makes one attempt to delete staged chunks now instead of when they
// expire; a full server needs the memory.
func (m *maker) abandon(ctx context.Context, t *procfleet.Task, groups []chunkGroup) {
	if len(groups) == 0 {
		return
	}
	keys := m.store.keys.task(t.ID)
	c := &call{script: abandonScript, keys: []string{keys.head(), keys.writer()}, args: []any{m.nonce}}
	for _, g := range groups {
		c.keys = append(c.keys, g.keys(keys)...)
	}
	if err := m.store.run(ctx, c); err != nil {
		m.store.log.WithField("task", t.ID).WithError(err).Warn("orphan chunks not removed, left to expire")
	}
}

// chunkGroup is consecutive packed chunks that travel in one call.
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

// group packs the chunks into groups of about a mebibyte, so that no call
// holds Redis up for long; there is one group at least.
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
