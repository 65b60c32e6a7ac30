package dispatcher

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
)

// openStore returns an empty store that ends with the test.
func openStore(tb testing.TB) *stores.Bolt {
	tb.Helper()
	return openStoreAt(tb, time.Now)
}

// openStoreAt is openStore with another clock than the machine's.
func openStoreAt(tb testing.TB, clock func() time.Time) *stores.Bolt {
	tb.Helper()
	store, err := stores.OpenBolt(filepath.Join(tb.TempDir(), "store"), boltdb.Options{Clock: clock})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	return store
}

// noted waits until the store has the mark that a task is queued, and returns the task. The
// dispatcher responds to a request without an idempotency key before it stores this mark.
func noted(tb testing.TB, store taskstore.Queries, id procfleet.TaskID) (task procfleet.Task) {
	tb.Helper()
	testenv.Eventually(tb, patience, func() (is bool) {
		var err error
		task, err = store.Task(tb.Context(), id)
		return err == nil && task.Dispatched
	}, "task "+string(id)+" to be noted as queued")
	return task
}

// fakeQueue records published chunks, or rejects them with err.
type fakeQueue struct {
	mu        sync.Mutex
	err       error
	onPublish func()
	published [][]bus.ChunkRef
}

func (q *fakeQueue) QuietestLane(_ context.Context, turn uint64) (procfleet.Lane, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return procfleet.BigLane(turn + 1), q.err
}

func (q *fakeQueue) PublishChunks(_ context.Context, refs []bus.ChunkRef, _ string) ([]uint64, error) {
	if q.onPublish != nil {
		q.onPublish()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return nil, q.err
	}
	q.published = append(q.published, refs)
	return make([]uint64, len(refs)), nil
}

func (q *fakeQueue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
}

func (q *fakeQueue) rounds() [][]bus.ChunkRef {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.published
}

// brokenStore is a store of which single calls fail.
type brokenStore struct {
	Store
	create, dispatched, reject, resolve error
	register, unregister, registrations error
	chunk                               func(n int) error
}

func (s *brokenStore) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	if s.create != nil {
		return procfleet.Task{}, false, s.create
	}
	return s.Store.Create(ctx, d)
}

func (s *brokenStore) Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error {
	if s.dispatched != nil {
		return s.dispatched
	}
	return s.Store.Dispatched(ctx, id, sequences)
}

// slowNotes is a store whose marks of queued tasks wait until open is closed.
type slowNotes struct {
	Store
	waiting atomic.Int32
	open    chan struct{}
}

func (s *slowNotes) Dispatched(ctx context.Context, id procfleet.TaskID, sequences []uint64) error {
	s.waiting.Add(1)
	<-s.open
	return s.Store.Dispatched(ctx, id, sequences)
}

func (s *brokenStore) Reject(ctx context.Context, id procfleet.TaskID, reason string) (bool, error) {
	if s.reject != nil {
		return false, s.reject
	}
	return s.Store.Reject(ctx, id, reason)
}

func (s *brokenStore) Resolve(ctx context.Context, ids []string) ([]procfleet.Host, error) {
	if s.resolve != nil {
		return nil, s.resolve
	}
	return s.Store.Resolve(ctx, ids)
}

func (s *brokenStore) Register(ctx context.Context, ds []catalog.Definition, replace bool) ([][]bool, error) {
	if s.register != nil {
		return nil, s.register
	}
	return s.Store.Register(ctx, ds, replace)
}

func (s *brokenStore) Unregister(ctx context.Context, ps []catalog.Process) ([]bool, error) {
	if s.unregister != nil {
		return nil, s.unregister
	}
	return s.Store.Unregister(ctx, ps)
}

func (s *brokenStore) Registrations(ctx context.Context, ps []catalog.Process) ([]*catalog.Registration, error) {
	if s.registrations != nil {
		return nil, s.registrations
	}
	return s.Store.Registrations(ctx, ps)
}

func (s *brokenStore) Chunk(ctx context.Context, id procfleet.TaskID, n int) ([]procfleet.ItemResult, error) {
	if s.chunk != nil {
		if err := s.chunk(n); err != nil {
			return nil, err
		}
	}
	return s.Store.Chunk(ctx, id, n)
}

func testConfig(t *testing.T) Config {
	t.Helper()
	return Config{Log: testenv.Log(t)}
}
