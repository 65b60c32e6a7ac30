package collect

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
	"github.com/procfleet/procfleet/worker/agentlink"
	"github.com/procfleet/procfleet/worker/storecall"
)

// distantStore needs a second for each lookup, and contains no task.
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
		"of many tasks": {func(n int) procfleet.TaskID { return procfleet.Number(n + 1).TaskID() }, 4 * maxLookups, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &distantStore{}
				c := &collector{
					Intake: signedIntake(),
					hosts:  newItemHosts(store),
				}
				requests := make([]*agentlink.Request, 4*maxLookups)
				for n := range requests {
					requests[n] = &agentlink.Request{Task: at.task(n), Results: []procfleet.Result{{Item: 7}}}
				}
				began := time.Now()
				if err := c.dropForeign(t.Context(), requests); err != nil {
					t.Fatal(err)
				}
				if lasted := time.Since(began); lasted != at.lasts || store.lookups.Load() != at.lookups {
					t.Errorf("%d lookups in %v, want %d in %v", store.lookups.Load(), lasted, at.lookups, at.lasts)
				}
				for _, r := range requests {
					if len(r.Results) != 0 || len(r.Foreign) != 1 {
						t.Fatalf("results of an unknown task: kept %v, rejected %v", r.Results, r.Foreign)
					}
				}
			})
		})
	}
}

// hangingStore is a store whose calls do not return before their context ends.
type hangingStore struct{ Store }

func (hangingStore) Owners(ctx context.Context, _ procfleet.TaskID, _ []int) ([]procfleet.Host, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestAgentsHearThatTheStoreHangsBeforeTheyRepeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &collector{
			Intake: signedIntake(),
			hosts:  newItemHosts(hangingStore{}), cfg: &Config{Link: &agentlink.Link{Reached: func(string) {}}},
		}
		requests := []*agentlink.Request{{Task: procfleet.Number(1).TaskID(), Results: []procfleet.Result{{Item: 7}}}}
		began := time.Now()
		left, err := c.collect(t.Context(), requests)
		if !storecall.Unavailable(err) || len(left) != 1 {
			t.Errorf("left %d requests, %v", len(left), err)
		}
		if lasted := time.Since(began); lasted >= agentproto.RequestTimeout {
			t.Errorf("agents wait %v, they repeat after %v", lasted, agentproto.RequestTimeout)
		}
	})
}

// signedIntake returns an intake with a fleet key and the default timeout of the store.
func signedIntake() *agentlink.Intake {
	keys := func() *fleetkey.Ring { return &fleetkey.Ring{} }
	link := &agentlink.Link{Auth: &agentlink.Authenticator{Keys: keys}, Calls: storecall.Policy{Timeout: 10 * time.Second}}
	return &agentlink.Intake{Link: link, Log: testenv.Silent()}
}
