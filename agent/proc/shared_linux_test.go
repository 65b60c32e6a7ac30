package proc

import (
	"context"
	"sync"
	"syscall"
	"testing"
)

// TestLooksThatShareAReadingSeeTheHostAsItIs verifies that a search, concurrent with many
// others, finds every process that started before the search and none that ended before it.
func TestLooksThatShareAReadingSeeTheHostAsItIs(t *testing.T) {
	t.Parallel()
	s := newSetup(t)
	finder, target := NewFinder(NewAccounts()), Target{ProcName: "app", SetupPath: s.dir}
	path := program(t, s.dir, "app")
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 8 {
		others.Go(func() {
			for ctx.Err() == nil {
				finder.Find(ctx, target)
			}
		})
	}
	defer others.Wait()
	defer cancel()
	for range 20 {
		h := spawn(t, path, s.dir, "sleep")
		if got := finder.Find(ctx, target); got.Verdict != Running || got.Procs[0].Identity != h.id {
			t.Fatalf("got %s (%s), want running %v", got.Verdict, got.Evidence, h.id)
		}
		if err := Signal(h.id, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is gone", func() bool { return !Alive(h.id) })
		wantProbe(t, finder.Find(ctx, target), Stopped, "no app runs")
	}
}

func TestSearchesAtTheSameTimeShareReadings(t *testing.T) {
	t.Parallel()
	s := &shared[[]located]{read: func() ([]located, error) { return readLocated(nil) }}
	s.reading.Lock() // a reading that is under way
	const searches = 50
	var mu sync.Mutex
	seen := map[*located]int{}
	var all sync.WaitGroup
	for range searches {
		all.Go(func() {
			rows, err := s.get()
			if err != nil || len(rows) == 0 {
				t.Errorf("%d rows, %v", len(rows), err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seen[&rows[0]]++
		})
	}
	eventually(t, "a search waits", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.next != nil
	})
	s.reading.Unlock()
	all.Wait()
	if len(seen) == searches {
		t.Errorf("%d searches read the host %d times", searches, len(seen))
	}
}
