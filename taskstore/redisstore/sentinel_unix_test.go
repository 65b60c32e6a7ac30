//go:build unix

package redisstore_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/redisstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

func TestFailOverBySentinelLosesNothingThatWaited(t *testing.T) {
	t.Parallel()
	master := redistest.StartMaster(t)
	replica := redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	sentinel := redistest.StartSentinel(t, "fleet", master, 1)
	s := open(t, redisconn.Options{
		URL: sentinel.URL() + "?master_name=fleet", WaitReplicas: 1, WaitTimeout: 5 * time.Second, Patience: 30 * time.Second,
	})
	task := create(t, s, storetest.Draft(600))
	record(t, s, task.ID, agentResults(0, 300))

	master.Stop(t)
	if got, err := s.Task(t.Context(), task.ID); err != nil || got.Counts[procfleet.StateSucceeded] != 300 {
		t.Fatalf("after the fail-over the task is %+v, %v", got, err)
	}
	// The promoted server has no replica of its own yet.
	alone := open(t, redisconn.Options{URL: replica.URL(), Patience: 30 * time.Second})
	if got := record(t, alone, task.ID, agentResults(300, 600)); !got.Completed {
		t.Errorf("record after the fail-over: %+v", got)
	}
	if next := create(t, alone, storetest.Draft(1)); next.Number <= task.Number {
		t.Errorf("number %d came after %d", next.Number, task.Number)
	}
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	master := redistest.StartMaster(t)
	redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	url := redistest.StartIdleSentinel(t, "fleet", master, 1).URL() + "?master_name=fleet"
	storetest.Run(t, storetest.Harness{
		// The checks share the servers; each has keys of its own.
		Open: func(tb testing.TB) taskstore.Store {
			tb.Helper()
			return open(tb, redisconn.Options{URL: url, Prefix: tb.Name() + ":", WaitReplicas: 1, WaitTimeout: 10 * time.Second, Patience: 30 * time.Second})
		},
		Orphan: orphan, Light: !testenv.IsLong(), Long: testenv.IsLong(),
	})
}

func TestFailOverBySentinelUnderLoadLosesNothingThatWaited(t *testing.T) {
	testenv.Long(t, "many calls during a fail-over by Sentinel, which waits half a minute on a busy machine")
	t.Parallel()
	master := redistest.StartMaster(t)
	for range 2 {
		redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	}
	url := redistest.StartSentinel(t, "fleet", master, 2).URL() + "?master_name=fleet"
	careful := open(t, redisconn.Options{URL: url, WaitReplicas: 2, WaitTimeout: 10 * time.Second, Patience: 3 * time.Second})
	// The other replica follows the promoted server after a while.
	after := open(t, redisconn.Options{URL: url, WaitReplicas: 1, WaitTimeout: 10 * time.Second, Patience: 3 * time.Second})
	l := startLoad(t, careful)
	l.more(t, 8)
	master.Stop(t)
	l.use(after)
	l.more(t, 12)
	l.audit(t, after, false)
}

// A change that a repeated call finds already made may exist on the master alone.
func TestRepeatOfACallThatWaitedInVainWaitsAgain(t *testing.T) {
	t.Parallel()
	master := redistest.StartMaster(t)
	replica := redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	redistest.StartIdleSentinel(t, "fleet", master, 1) // returns when the replica is there
	sure := open(t, redisconn.Options{URL: master.URL()})
	task := create(t, sure, storetest.Draft(3))
	s := open(t, redisconn.Options{URL: master.URL() + "?wait_replicas=1", WaitTimeout: 50 * time.Millisecond})
	s.SetPatience(300 * time.Millisecond)
	replica.Freeze(t)
	for range 3 {
		_, err := s.Record(t.Context(), []taskstore.Batch{{Task: task.ID, Results: agentResults(0, 3)}})
		if !errors.Is(err, taskstore.ErrUnavailable) {
			t.Errorf("record with a replica that does not take it: %v", err)
		}
	}
}

// A connection that breaks during WAIT loses the answers of the scripts before it, too.
func TestRepeatAfterABrokenWaitAnswersWhatTheFirstAttemptChanged(t *testing.T) {
	t.Parallel()
	master := redistest.StartMaster(t)
	replica := redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	redistest.StartIdleSentinel(t, "fleet", master, 1) // returns when the replica is there
	c := master.Client(t)
	var breaking sync.WaitGroup
	defer breaking.Wait()
	task := create(t, open(t, redisconn.Options{URL: master.URL()}), storetest.Draft(3))
	losing := open(t, redisconn.Options{URL: master.URL(), WaitReplicas: 1, WaitTimeout: time.Minute, Patience: time.Minute})
	replica.Freeze(t)
	breaking.Go(func() {
		defer replica.Thaw(t)
		if err := redistest.BreakWait(t.Context(), c); err != nil {
			t.Error(err)
		}
	})
	if got := record(t, losing, task.ID, agentResults(0, 3)); !got.Completed {
		t.Errorf("record of the last results: %+v", got)
	}
}

// In TestTaskThatNoReplicaHasIsNotPublished the replica disconnects just after the task was written,
// and the caller receives an error and may retry. If the sweep published the task and the master was
// then lost, the retry would create a second task and run the operation again.
func TestTaskThatNoReplicaHasIsNotPublished(t *testing.T) {
	t.Parallel()
	master := redistest.StartMaster(t)
	replica := redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	redistest.StartIdleSentinel(t, "fleet", master, 1) // returns when the replica is there
	replica.Freeze(t)
	task := create(t, open(t, redisconn.Options{URL: master.URL()}), storetest.Draft(3))
	s := open(t, redisconn.Options{URL: master.URL() + "?wait_replicas=1", WaitTimeout: 50 * time.Millisecond})
	s.SetPatience(300 * time.Millisecond)
	if chunks, err := s.Undone(t.Context(), task.ID); !errors.Is(err, taskstore.ErrUnavailable) {
		t.Errorf("the sweep may publish %+v, %v", chunks, err)
	}
	replica.Thaw(t)
	testenv.Eventually(t, time.Minute, func() bool {
		chunks, err := s.Undone(t.Context(), task.ID)
		return err == nil && len(chunks) == 1
	}, "the sweep may publish what the replica has")
}

func TestNumberOfReplicasInTheURLMustBeOne(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "-1", "many", "256"} {
		_, err := redisstore.Open(t.Context(), redisconn.Options{URL: "redis://127.0.0.1:1?wait_replicas=" + text, Log: testenv.Log(t)})
		if err == nil || !strings.Contains(err.Error(), "wait_replicas") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
