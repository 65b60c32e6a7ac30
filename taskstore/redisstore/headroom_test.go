package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// fill creates tasks of the given size until the store is full.
func fill(t *testing.T, s taskstore.Store, items int) []procfleet.TaskID {
	t.Helper()
	var (
		mu    sync.Mutex
		ids   []procfleet.TaskID
		group sync.WaitGroup
	)
	for range 8 {
		group.Go(func() {
			for {
				task, _, err := s.Create(t.Context(), storetest.Draft(items))
				if errors.Is(err, taskstore.ErrFull) {
					return
				}
				if err != nil {
					t.Errorf("create, before the store is full: %v", err)
					return
				}
				mu.Lock()
				ids = append(ids, task.ID)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return ids
}

// finish makes all calls for a task from its delivery until it is settled.
func finish(ctx context.Context, s taskstore.Store, id procfleet.TaskID, items int) error {
	if err := s.Dispatched(ctx, id, []uint64{1}); err != nil {
		return err
	}
	if b, err := s.Begin(ctx, id, 0, 0); err != nil || b.Gate != taskstore.GateOpen {
		return fmt.Errorf("begin: %q, %w", b.Gate, err)
	}
	var all []int
	for i := range items {
		all = append(all, i)
	}
	if err := s.Delivered(ctx, id, 0, all, true); err != nil {
		return err
	}
	got, err := s.Record(ctx, []taskstore.Batch{{Task: id, Results: agentResults(0, items)}})
	if err != nil || !got[0].Completed {
		return fmt.Errorf("record: %+v, %w", got, err)
	}
	return s.Notified(ctx, id)
}

func TestTasksThatWereAcceptedFinishWhenRedisHasNoRoomForMore(t *testing.T) {
	t.Parallel()
	const items = 256 // whose results take the largest part
	server := redistest.Start(t, "--maxmemory", "24mb", "--appendonly", "no")
	// Few connections: on a busy machine, many with a long pipeline each have buffers of several MiB.
	s := open(t, redisconn.Options{URL: server.URL() + "?pool_size=2"})
	d := storetest.Draft(1)
	d.IdempotencyKey, d.BodyHash = "key", "body"
	before := create(t, s, d)
	ids := fill(t, s, items)
	if len(ids) < 350 {
		t.Errorf("only %d tasks of %d items were accepted", len(ids), items)
	}
	if again, created, err := s.Create(t.Context(), d); err != nil || created || again.ID != before.ID {
		t.Errorf("a repeat while the store is full: %s, created %v, %v; want %s", again.ID, created, err, before.ID)
	}
	var hosts []taskstore.Announcement
	for _, c := range storetest.Draft(1500).Chunks {
		for _, item := range c.Items {
			hosts = append(hosts, taskstore.Announcement{Host: item.Target.Host, AgentID: item.Target.AgentID, Instance: "instance"})
		}
	}
	if err := s.Announce(t.Context(), hosts); err != nil {
		t.Errorf("announce while the store is full: %v", err)
	}
	var group errgroup.Group
	group.SetLimit(4)
	for _, id := range ids {
		group.Go(func() error { return finish(t.Context(), s, id, items) })
	}
	if err := group.Wait(); err != nil {
		t.Errorf("a task that was accepted: %v", err)
	}
	if err := server.Client(t).ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() bool {
		_, created, err := s.Create(t.Context(), storetest.Draft(1))
		return err == nil && created
	}, "new tasks are accepted when there is room again")
}

func TestMemoryThatMayNotBeReadLimitsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory", "64mb")
	if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	create(t, open(t, redisconn.Options{URL: "redis://limited:secret@" + server.Addr}), storetest.Draft(1))
}
