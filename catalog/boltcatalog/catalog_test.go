package boltcatalog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/procfleet/procfleet/catalog/catalogtest"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
)

// movable is a store with a clock that can be moved.
type movable struct {
	*stores.Bolt
	path  string
	ahead *atomic.Int64
}

func open(tb testing.TB, path string, ahead *atomic.Int64) movable {
	tb.Helper()
	s, err := stores.OpenBolt(path, boltdb.Options{
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
	return movable{Bolt: s, path: path, ahead: ahead}
}

func harness() catalogtest.Harness {
	return catalogtest.Harness{
		Open: func(tb testing.TB) catalogtest.Store {
			tb.Helper()
			return open(tb, filepath.Join(tb.TempDir(), "tasks.db"), new(atomic.Int64))
		},
		Reopen: func(tb testing.TB, old catalogtest.Store) catalogtest.Store {
			tb.Helper()
			m := old.(movable)
			if err := m.Close(); err != nil {
				tb.Error(err)
			}
			return open(tb, m.path, m.ahead)
		},
		Long: testenv.IsLong(),
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	catalogtest.Run(t, harness())
}

func BenchmarkCatalog(b *testing.B) { catalogtest.RunBenchmarks(b, harness()) }

// victimFile is set for the process that is to be killed: the file to write.
const victimFile = "PROCFLEET_TEST_VICTIM_FILE"

// victim writes to the catalog until it is killed, and writes a line to standard output for each
// confirmed call.
func victim(path string) error {
	if round := os.Getenv(victimRound); round != "" {
		return catalogVictim(path, round)
	}
	return templateVictim(path)
}

func TestMain(m *testing.M) {
	if path := os.Getenv(victimFile); path != "" {
		fmt.Fprintln(os.Stderr, "victim ended:", victim(path))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
