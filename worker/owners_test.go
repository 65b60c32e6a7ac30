package worker

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/taskstore"
)

// distantStore takes a second for each lookup, and has no task.
type distantStore struct {
	Store
	lookups atomic.Int32
}

func (s *distantStore) Owners(context.Context, procfleet.TaskID, []int) ([]procfleet.Host, error) {
	s.lookups.Add(1)
	time.Sleep(time.Second)
	return nil, taskstore.ErrNotFound
}

func TestReceiptsDoNotWaitForOneLookupAfterAnother(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]struct {
		task    func(n int) procfleet.TaskID
		lookups int32
		lasts   time.Duration
	}{
		"of one task":   {func(int) procfleet.TaskID { return procfleet.Number(1).TaskID() }, 1, time.Second},
		"of many tasks": {func(n int) procfleet.TaskID { return procfleet.Number(n + 1).TaskID() }, 4 * lookupsAtOnce, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &distantStore{}
				c := &collector{
					intake: &intake{believer: &believer{keys: func() *fleetkey.Ring { return &fleetkey.Ring{} }}, log: testenv.Silent()},
					owners: newOwners(store),
				}
				requests := make([]*request, 4*lookupsAtOnce)
				for n := range requests {
					requests[n] = &request{task: at.task(n), results: []procfleet.Result{{Item: 7}}}
				}
				began := time.Now()
				if err := c.keepOwn(t.Context(), requests); err != nil {
					t.Fatal(err)
				}
				if lasted := time.Since(began); lasted != at.lasts || store.lookups.Load() != at.lookups {
					t.Errorf("%d lookups in %v, want %d in %v", store.lookups.Load(), lasted, at.lookups, at.lasts)
				}
				for _, r := range requests {
					if len(r.results) != 0 || len(r.foreign) != 1 {
						t.Fatalf("results of an unknown task: kept %v, rejected %v", r.results, r.foreign)
					}
				}
			})
		})
	}
}

// hangingStore answers nothing.
type hangingStore struct{ Store }

func (hangingStore) Owners(ctx context.Context, _ procfleet.TaskID, _ []int) ([]procfleet.Host, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestAgentsHearThatTheStoreHangsBeforeTheyRepeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		timing := Timing{}.withDefaults()
		c := &collector{
			intake: &intake{believer: &believer{keys: func() *fleetkey.Ring { return &fleetkey.Ring{} }}, log: testenv.Silent()},
			owners: newOwners(hangingStore{}), timing: &timing, reached: func(string) {},
		}
		requests := []*request{{task: procfleet.Number(1).TaskID(), results: []procfleet.Result{{Item: 7}}}}
		began := time.Now()
		left, err := c.collect(t.Context(), requests)
		if !storeAway(err) || len(left) != 1 {
			t.Errorf("left %d requests, %v", len(left), err)
		}
		if lasted := time.Since(began); lasted >= agentproto.RequestTimeout {
			t.Errorf("agents wait %v, they repeat after %v", lasted, agentproto.RequestTimeout)
		}
	})
}
