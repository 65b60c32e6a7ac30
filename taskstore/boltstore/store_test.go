package boltstore_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

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

func open(t testing.TB, path string, ahead *atomic.Int64) movable {
	t.Helper()
	s, err := boltstore.Open(path, boltstore.Options{
		Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return movable{Store: s, path: path, ahead: ahead}
}

func harness() storetest.Harness {
	return storetest.Harness{
		Open: func(t testing.TB) taskstore.Store {
			return open(t, filepath.Join(t.TempDir(), "tasks.db"), new(atomic.Int64))
		},
		Reopen: func(t testing.TB, old taskstore.Store) taskstore.Store {
			m := old.(movable)
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			return open(t, m.path, m.ahead)
		},
		Advance: func(_ testing.TB, s taskstore.Store, d time.Duration) { s.(movable).ahead.Add(int64(d)) },
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, harness())
}

func BenchmarkStore(b *testing.B) { storetest.RunBenchmarks(b, harness()) }

func TestMain(m *testing.M) {
	if path := os.Getenv(victimFile); path != "" {
		fmt.Fprintln(os.Stderr, "victim ended:", victim(path))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
