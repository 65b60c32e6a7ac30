package boltstore_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/boltstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// movable is a store with a clock that can be moved.
type movable struct {
	*boltstore.Store
	path  string
	ahead *atomic.Int64
}

func open(tb testing.TB, path string, ahead *atomic.Int64) movable {
	tb.Helper()
	s, err := boltstore.Open(path, boltdb.Options{
		Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }, NoSync: true,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return movable{Store: s, path: path, ahead: ahead}
}

func harness() storetest.Harness {
	return storetest.Harness{
		Open: func(tb testing.TB) taskstore.Store {
			tb.Helper()
			return open(tb, filepath.Join(tb.TempDir(), "tasks.db"), new(atomic.Int64))
		},
		Reopen: func(tb testing.TB, old taskstore.Store) taskstore.Store {
			tb.Helper()
			m := old.(movable)
			if err := m.Close(); err != nil {
				tb.Error(err)
			}
			return open(tb, m.path, m.ahead)
		},
		Advance: func(_ testing.TB, s taskstore.Store, d time.Duration) { s.(movable).ahead.Add(int64(d)) },
		Delay: func(tb testing.TB, s taskstore.Store, d taskstore.Draft, meanwhile func()) (procfleet.Task, bool, error) {
			tb.Helper()
			meanwhile() // number, entry and task are made in one step
			return s.Create(tb.Context(), d)
		},
		Long: testenv.IsLong(),
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, harness())
}

func TestAClosedStoreIsUnavailable(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "tasks.db"), new(atomic.Int64))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	id := procfleet.Number(1e15).TaskID()
	_, read := s.Task(t.Context(), id)
	_, wrote := s.Begin(t.Context(), id, 0, 0)
	if !errors.Is(read, taskstore.ErrUnavailable) || !errors.Is(wrote, taskstore.ErrUnavailable) {
		t.Errorf("read: %v; write: %v", read, wrote)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}

func BenchmarkStore(b *testing.B) { storetest.RunBenchmarks(b, harness()) }

func TestMain(m *testing.M) {
	if path := os.Getenv(victimFile); path != "" {
		fmt.Fprintln(os.Stderr, "victim ended:", victim(path))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
