package boltstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
)

func openAt(t *testing.T, ahead *atomic.Int64) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "tasks.db"), Options{
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
	return s
}

// held keeps the writer busy until release is called.
func held(t *testing.T, s *Store) (release func()) {
	t.Helper()
	running, gate := make(chan struct{}), make(chan struct{})
	over := make(chan error, 1)
	go func() {
		over <- change(t.Context(), s, func(*tx) error { close(running); <-gate; return nil })
	}()
	<-running
	return func() {
		close(gate)
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

func TestAChangeThatFailsHarmsNoOther(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	release := held(t, s)
	broken := errors.New("broken")
	errs := make([]error, 20)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			errs[i] = change(t.Context(), s, func(t *tx) error {
				if err := t.Bucket(bucketMeta).Put(fmt.Appendf(nil, "test %d", i), []byte{1}); err != nil {
					return err
				}
				if i%5 == 0 {
					return broken
				}
				return nil
			})
		})
	}
	release()
	wg.Wait()
	for i, err := range errs {
		if bad := i%5 == 0; errors.Is(err, broken) != bad || errors.Is(err, taskstore.ErrUnavailable) != bad {
			t.Errorf("change %d: %v", i, err)
		}
	}
	err := s.db.View(func(b *bbolt.Tx) error {
		for i := range errs {
			if there := b.Bucket(bucketMeta).Get(fmt.Appendf(nil, "test %d", i)) != nil; there == (i%5 == 0) {
				t.Errorf("what change %d wrote is there: %v", i, there)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestACallerLeavesWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	release := held(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	ran := false
	go func() { over <- change(ctx, s, func(*tx) error { ran = true; return nil }) }()
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled change: %v", err)
	}
	release()
	if err := change(t.Context(), s, func(*tx) error { return nil }); err != nil || ran {
		t.Errorf("a change that nobody awaits ran: %v, %v", ran, err)
	}
}

func TestAClosedStoreIsUnavailable(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	id := procfleet.Number(1e15).TaskID()
	_, read := s.Task(t.Context(), id)
	_, wrote := s.Begin(t.Context(), id, 0)
	if !errors.Is(read, taskstore.ErrUnavailable) || !errors.Is(wrote, taskstore.ErrUnavailable) {
		t.Errorf("read: %v; write: %v", read, wrote)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}

func TestAFileInUseIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tasks.db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Open(path, Options{}); err == nil {
		t.Error("the file was opened twice", second.Close())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if s, err = Open(filepath.Join(path, "no", "folder"), Options{}); err == nil {
		t.Error("a file in no folder was opened", s.Close())
	}
}

func TestAFileOfALaterFormatIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tasks.db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	later := func(t *tx) error { return t.Bucket(bucketMeta).Put(keyFormat, number8(format+1)) }
	if err := errors.Join(change(t.Context(), s, later), s.Close()); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(path, Options{}); err == nil {
		t.Error("a file of a later format was opened", s.Close())
	}
}

func TestReportsOfHostsThatNeverAnnouncedExpire(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	s := openAt(t, &ahead)
	h, err := procfleet.ParseHost("0:10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	report := catalog.Report{Host: h, Number: 1, Processes: []catalog.ReportedProcess{{Namespace: "shop", Name: "web"}}}
	if err := s.Report(t.Context(), []catalog.Report{report}); err != nil {
		t.Fatal(err)
	}
	if err := s.purge(t.Context()); err != nil || keysIn(t, s, bucketReports) != 1 {
		t.Errorf("a new report was removed, or %v", err)
	}
	if ps, err := s.Presences(t.Context(), []procfleet.Host{h}); err != nil || !ps[0].Host.IsZero() {
		t.Errorf("a host that never announced itself is present as %+v, %v", ps, err)
	}
	ahead.Add(int64(taskstore.InstanceMemory))
	if err := s.purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, bucket := range [][]byte{bucketReports, bucketProcesses, bucketHosts} {
		if n := keysIn(t, s, bucket); n != 0 {
			t.Errorf("%d keys are left in %s", n, bucket)
		}
	}
}

func TestPurgeLeavesNothingOfWhatExpired(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	s := openAt(t, &ahead)
	for _, n := range []int{1, 3 * purgeStep} {
		draft := taskstore.Draft{
			Timeout: time.Second, Retention: time.Second, Application: "shop", IdempotencyKey: fmt.Sprint(n),
			Chunks: []procfleet.Chunk{{Specs: make([]procfleet.ProcessSpec, 1), Items: make([]procfleet.Item, n)}},
		}
		task, _, err := s.Create(t.Context(), draft)
		if err != nil {
			t.Fatal(err)
		}
		b := taskstore.Batch{Task: task.ID}
		for i := range n {
			b.Results = append(b.Results, procfleet.Result{Item: i, Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent})
		}
		if _, err := s.Record(t.Context(), []taskstore.Batch{b}); err != nil {
			t.Fatal(err)
		}
	}
	h, err := procfleet.ParseHost("0:10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Announce(t.Context(), []taskstore.Announcement{{Host: h, AgentID: "a", Instance: "i"}}); err != nil {
		t.Fatal(err)
	}
	report := catalog.Report{Host: h, Number: 1, Processes: []catalog.ReportedProcess{{Namespace: "shop", Name: "web"}}}
	if err := s.Report(t.Context(), []catalog.Report{report}); err != nil {
		t.Fatal(err)
	}
	if err := s.purge(t.Context()); err != nil || keysIn(t, s, bucketTasks) != 2 || keysIn(t, s, bucketHosts) != 1 {
		t.Errorf("what has not expired was removed, or %v", err)
	}
	ahead.Add(int64(time.Hour))
	if err := s.purge(t.Context()); err != nil || keysIn(t, s, bucketTasks) != 0 || keysIn(t, s, bucketHosts) != 1 || keysIn(t, s, bucketReports) != 1 {
		t.Errorf("a silent host was forgotten at once, or a task was not, or %v", err)
	}
	ahead.Add(int64(taskstore.InstanceMemory))
	if err := s.purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, bucket := range buckets() {
		want := 0
		if string(bucket) == string(bucketMeta) {
			want = 2
		}
		if n := keysIn(t, s, bucket); n != want {
			t.Errorf("%d keys are left in %s, want %d", n, bucket, want)
		}
	}
}

func keysIn(t *testing.T, s *Store, bucket []byte) int {
	t.Helper()
	n := 0
	err := s.db.View(func(b *bbolt.Tx) error {
		n = b.Bucket(bucket).Stats().KeyN
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Under the race detector: the writer reads what purge has handed to it, also
// after purge has returned.
func TestAPurgeThatIsCanceledSharesNothingWithTheWriter(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	for i := range 200 { // ends it at every stage
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		if err := s.purge(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
}
