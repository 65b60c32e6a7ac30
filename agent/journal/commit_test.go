package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// An agent that follows on the same boot reads the PID from the page cache; on
// another boot the process does not exist.
func TestOnlyTheRecordBeforeTheSpawnIsSynced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := mustOpen(t, dir)
	op := startOp("t", 0)
	receive(t, j, op)
	var synced []bool
	j.OnWrite(func(w Write) { synced = append(synced, w.Sync > 0) })
	for _, exec := range []Exec{{BootID: "b"}, {BootID: "b", PID: 7, Start: 8}} {
		if err := j.Execute(op.ID, exec); err != nil {
			t.Fatal(err)
		}
	}
	if want := []bool{true, false}; !slices.Equal(synced, want) {
		t.Errorf("synced %v, want %v", synced, want)
	}
	mustClose(t, j)
	_, recovered := mustOpen(t, dir)
	if open := recovered.Open; len(open) != 1 || open[0].Exec.PID != 7 {
		t.Errorf("recovered %+v, want the PID", open)
	}
}

// TestAPanicInAWriteFailsTheOtherChanges: callers that wait for the same
// commit return with an error instead of hanging or reporting a durable change.
func TestAPanicInAWriteFailsTheOtherChanges(t *testing.T) {
	t.Parallel()
	j, _ := mustOpen(t, t.TempDir())
	j.mu.Lock() // both changes are queued before one of them is written
	var undone atomic.Bool
	panicked, failed := make(chan any, 1), make(chan error, 1)
	go func() {
		defer func() { panicked <- recover() }()
		_ = j.do(&change{stage: func(g *group) error {
			g.onFailure(func() { undone.Store(true) })
			panic("a bug")
		}})
	}()
	queued := func(n int) func() bool {
		return func() bool { j.queueMu.Lock(); defer j.queueMu.Unlock(); return len(j.queue) == n }
	}
	testenv.Eventually(t, time.Minute, queued(1), "the first change is queued")
	go func() { failed <- j.SaveProcess("k", json.RawMessage(`1`)) }()
	testenv.Eventually(t, time.Minute, queued(2), "the second change is queued")
	j.mu.Unlock()
	if got := <-panicked; got != "a bug" {
		t.Errorf("recovered %v", got)
	}
	if err := <-failed; !errors.Is(err, errPanicked) || !undone.Load() {
		t.Errorf("the other change: %v; undone: %v", err, undone.Load())
	}
	if err := j.SaveProcess("k", json.RawMessage(`2`)); err != nil {
		t.Errorf("the next change: %v", err)
	}
	mustClose(t, j)
}

func TestClosedJournalRefuses(t *testing.T) {
	t.Parallel()
	j, _ := mustOpen(t, t.TempDir())
	mustClose(t, j)
	if _, err := j.Receive([]Op{startOp("t", 0)}); err == nil {
		t.Fatal("no error")
	}
}

func BenchmarkReceive(b *testing.B) {
	for _, callers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			j, _ := mustOpen(b, b.TempDir())
			var wg sync.WaitGroup
			b.ResetTimer()
			for c := range callers {
				wg.Go(func() {
					for i := c; i < b.N; i += callers {
						if _, err := j.Receive([]Op{startOp("t", i)}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
		})
	}
}
