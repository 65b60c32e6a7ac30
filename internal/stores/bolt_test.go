package stores_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

func openBolt(t *testing.T, ahead *atomic.Int64) *stores.Bolt {
	t.Helper()
	s, err := stores.OpenBolt(filepath.Join(t.TempDir(), "tasks.db"), boltdb.Options{
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

func keysIn(t *testing.T, s *stores.Bolt, bucket string) int {
	t.Helper()
	n, err := boltdb.View(t.Context(), s.DB, func(t *boltdb.Tx) (int, error) { return t.Bucket([]byte(bucket)).Stats().KeyN, nil })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestReportsOfHostsThatNeverAnnouncedExpire(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	s := openBolt(t, &ahead)
	h, err := procfleet.ParseHost("0:10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	report := catalog.Report{Host: h, Number: 1, Processes: []catalog.ReportedProcess{{Namespace: "shop", Name: "web"}}}
	if err := s.Report(t.Context(), []catalog.Report{report}); err != nil {
		t.Fatal(err)
	}
	if err := s.DB.Purge(t.Context()); err != nil || keysIn(t, s, "reports") != 1 {
		t.Errorf("a new report was removed, or %v", err)
	}
	if ps, err := s.Presences(t.Context(), []procfleet.Host{h}); err != nil || !ps[0].Host.IsZero() {
		t.Errorf("a host that never announced itself is present as %+v, %v", ps, err)
	}
	ahead.Add(int64(taskstore.InstanceMemory))
	if err := s.DB.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, bucket := range []string{"reports", "processes", "hosts"} {
		if n := keysIn(t, s, bucket); n != 0 {
			t.Errorf("%d keys are left in %s", n, bucket)
		}
	}
}

func TestPurgeLeavesNothingOfWhatExpired(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	s := openBolt(t, &ahead)
	for _, n := range []int{1, 3 * boltdb.PurgeKeys} {
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
	if err := s.DB.Purge(t.Context()); err != nil || keysIn(t, s, "tasks") != 2 || keysIn(t, s, "hosts") != 1 {
		t.Errorf("what has not expired was removed, or %v", err)
	}
	ahead.Add(int64(time.Hour))
	if err := s.DB.Purge(t.Context()); err != nil || keysIn(t, s, "tasks") != 0 || keysIn(t, s, "hosts") != 1 || keysIn(t, s, "reports") != 1 {
		t.Errorf("a silent host was forgotten at once, or a task was not, or %v", err)
	}
	ahead.Add(int64(taskstore.InstanceMemory))
	if err := s.DB.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	buckets := 0
	_, err = boltdb.View(t.Context(), s.DB, func(tx *boltdb.Tx) (none struct{}, _ error) {
		return none, tx.ForEach(func(bucket []byte, b *bbolt.Bucket) error {
			buckets++
			want := 0
			if string(bucket) == string(boltdb.BucketMeta) {
				want = 2
			}
			if n := b.Stats().KeyN; n != want {
				t.Errorf("%d keys are left in %s, want %d", n, bucket, want)
			}
			return nil
		})
	})
	if err != nil || buckets != 27 {
		t.Errorf("%d buckets, %v", buckets, err)
	}
}

// Under the race detector: the writer reads what purge has handed to it, also
// after purge has returned.
func TestAPurgeThatIsCanceledSharesNothingWithTheWriter(t *testing.T) {
	t.Parallel()
	s := openBolt(t, new(atomic.Int64))
	for i := range 200 { // ends it at every stage
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		if err := s.DB.Purge(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
}
