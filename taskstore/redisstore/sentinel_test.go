package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore/redisstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

func TestFailOverBySentinelLosesNothingThatWaited(t *testing.T) {
	t.Parallel()
	master := startMaster(t)
	replica := redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	sentinel := redistest.StartSentinel(t, "fleet", master, 1)
	s := open(t, redisstore.Options{
		URL: sentinel.URL() + "?master_name=fleet", WaitReplicas: 1, WaitTimeout: 5 * time.Second, Patience: 30 * time.Second,
	})
	task := create(t, s, storetest.Draft(600))
	record(t, s, task.ID, agentResults(0, 300))

	master.Stop(t)
	if got, err := s.Task(t.Context(), task.ID); err != nil || got.Counts[procfleet.StateSucceeded] != 300 {
		t.Fatalf("after the fail-over the task is %+v, %v", got, err)
	}
	// What was promoted has no replica of its own yet.
	alone := open(t, redisstore.Options{URL: replica.URL(), Patience: 30 * time.Second})
	if got := record(t, alone, task.ID, agentResults(300, 600)); !got.Completed {
		t.Errorf("record after the fail-over: %+v", got)
	}
	if next := create(t, alone, storetest.Draft(1)); next.Number <= task.Number {
		t.Errorf("number %d came after %d", next.Number, task.Number)
	}
}
