package redisstore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// slowMaker writes a task in steps, so that makers of one id can be interleaved.
type slowMaker struct {
	*maker
	task   procfleet.Task
	groups []chunkGroup
}

func newSlowMaker(t *testing.T, s *Store, nonce string, n procfleet.Number) *slowMaker {
	t.Helper()
	d := BigDraft(3)
	m := &slowMaker{maker: &maker{store: s, draft: &d, nonce: nonce, latest: time.Now().Add(time.Hour)}}
	m.task = m.maker.task(n, time.Now())
	groups, err := group(d.Chunks)
	if err != nil || len(groups) < 3 {
		t.Fatalf("%d groups, %v", len(groups), err)
	}
	m.groups = groups
	return m
}

func (m *slowMaker) stage(t *testing.T, i int, want string) {
	t.Helper()
	m.expect(t, m.stageCall(&m.task, m.groups[i], i == 0), want)
}

func (m *slowMaker) finish(t *testing.T, want string) {
	t.Helper()
	c, err := m.createCall(&m.task, m.groups)
	if err != nil {
		t.Fatal(err)
	}
	m.expect(t, c, want)
}

func (m *slowMaker) expect(t *testing.T, c *redisconn.Call, want string) {
	t.Helper()
	if err := m.store.conn.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if answer, err := c.Cmd.Text(); answer != want || err != nil {
		t.Fatalf("maker %s: %q, %v; want %q", m.nonce, answer, err, want)
	}
}

func TestChunksOfTwoMakersAreNotMixed(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), redisconn.Options{URL: redistest.Start(t).URL(), Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	n, _, err := s.tick(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first, second := newSlowMaker(t, s, "first", n), newSlowMaker(t, s, "second", n)
	first.stage(t, 0, "staged")
	second.stage(t, 0, "staged")
	first.stage(t, 1, "overtaken")
	first.finish(t, "overtaken")
	for i := 1; i < len(second.groups)-1; i++ {
		second.stage(t, i, "staged")
	}
	lost := s.keys.task(second.task.ID).chunk(1)
	if err := s.conn.Client().Rename(t.Context(), lost, lost+":lost").Err(); err != nil {
		t.Fatal(err)
	}
	second.finish(t, "overtaken") // by a fail-over
	if err := s.conn.Client().Rename(t.Context(), lost+":lost", lost).Err(); err != nil {
		t.Fatal(err)
	}
	first.abandon(t.Context(), &first.task, first.groups) // not its own any more
	second.finish(t, "created")
	second.finish(t, "created") // as if the answer had been lost
	first.stage(t, 0, "exists")
	first.finish(t, "exists")
	last := second.task.Chunks - 1
	if b, err := s.Begin(t.Context(), second.task.ID, last, 0); err != nil || b.Gate != taskstore.GateOpen {
		t.Errorf("begin of the last chunk: %s, %v", b.Gate, err)
	}
	if b, err := s.Begin(t.Context(), second.task.ID, 0, 0); err != nil || b.Gate != taskstore.GateOpen {
		t.Errorf("begin of the first chunk: %s, %v", b.Gate, err)
	}
}

// beforeCreate calls fn before each attempt to write the head of a task.
type beforeCreate struct{ fn func(context.Context) }

func (beforeCreate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (beforeCreate) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h beforeCreate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		for _, cmd := range commands {
			if slices.Contains(cmd.Args(), any(createScript.Hash())) {
				h.fn(ctx)
			}
		}
		return next(ctx, commands)
	}
}

func TestSweepDoesNotLoseATaskThatContinuesAnId(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), redisconn.Options{URL: redistest.Start(t).URL(), Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	d := storetest.Draft(1)
	d.IdempotencyKey, d.Timeout = "key", time.Millisecond // due at once
	id, err := s.Orphan(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	settled := false
	s.conn.Client().AddHook(beforeCreate{fn: func(ctx context.Context) {
		settled = true
		if err := s.Settle(ctx, taskstore.Visit{Task: id}); err != nil {
			t.Error(err)
		}
	}})
	task, created, err := s.Create(t.Context(), d)
	if err != nil || !created || task.ID != id || !settled {
		t.Fatalf("create: %s, created %v, settled %v, %v; want %s", task.ID, created, settled, err, id)
	}
	testenv.Eventually(t, 10*time.Second, func() bool {
		due, err := s.Due(t.Context(), taskstore.Shard(task.Number), 10)
		return err == nil && len(due) == 1 && due[0].Task == id
	}, "the task is due")
}

// A dispatcher may be suspended after it has received a number, while another dispatcher rejects the same
// request because its latest time of creation has passed. Big drafts are staged.
func TestNoTaskIsMadeByOneWhoWasFrozenUntilTheTimeWasUp(t *testing.T) {
	t.Parallel()
	clock := redistest.BuildClock(t)
	for name, d := range map[string]taskstore.Draft{"small": storetest.Draft(1), "big": BigDraft(2)} {
		server := clock.Start(t)
		s, err := Open(t.Context(), redisconn.Options{URL: server.URL(), Log: testenv.Log(t)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		now, err := s.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d.IdempotencyKey, d.BodyHash, d.NotAfter = "key", "body", now.Add(time.Hour)
		if _, created, err := s.Delay(t.Context(), d, func() { server.Advance(t, 2*time.Hour) }); created || !errors.Is(err, taskstore.ErrExpired) {
			t.Errorf("%s, frozen: created %v, %v; want ErrExpired", name, created, err)
		}
		d.NotAfter = time.Time{}
		task, created, err := s.Create(t.Context(), d)
		if err != nil || !created {
			t.Fatalf("%s, no limit: created %v, %v", name, created, err)
		}
		d.NotAfter = now
		if again, created, err := s.Create(t.Context(), d); err != nil || created || again.ID != task.ID {
			t.Errorf("%s, a late repeat: %s, created %v, %v; want %s", name, again.ID, created, err, task.ID)
		}
	}
}
