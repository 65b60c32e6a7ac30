package redisstore_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

func TestSlotThatMovesIsRiddenOut(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2)
	s := open(t, redisconn.Options{URL: nodes[0].URL() + "?addr=" + nodes[1].Addr, Patience: 30 * time.Second})
	task := create(t, s, storetest.Draft(600))
	head := "pf:{" + string(task.ID) + "}:head"
	m := redistest.BeginMigration(t, nodes, head)
	m.Move(t, head) // now no node has all keys that a script needs

	done := make(chan error, 1)
	go func() {
		out, err := s.Record(t.Context(), []taskstore.Batch{{Task: task.ID, Results: agentResults(0, 600)}})
		if err == nil && (out[0].Applied != 600 || !out[0].Completed) {
			t.Errorf("record: %+v", out[0])
		}
		done <- err
	}()
	// More often than the client tries by itself.
	testenv.Eventually(t, 30*time.Second, func() bool { return redistest.Refusals(t, m.From, "TRYAGAIN") > 10 }, "the slot is found half way")
	m.Finish(t)
	if err := <-done; err != nil {
		t.Errorf("record while the slot moved: %v", err)
	}
	got, err := s.Task(t.Context(), task.ID)
	if err != nil || got.State != procfleet.TaskFinished {
		t.Errorf("the task is %+v, %v", got, err)
	}
}

// After the completion of a task was notified, a replica without the task's last results may replace
// the server of the task. The index, with the notification, is on another server.
func TestTaskOfAClusterThatForgetsItsEndAfterItWasNotifiedIsVisitedAgain(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2)
	s := open(t, redisconn.Options{URL: nodes[0].URL() + "?addr=" + nodes[1].Addr, Patience: 30 * time.Second})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr, nodes[1].Addr}})
	t.Cleanup(func() { _ = cluster.Close() })
	due := func(shard int) []taskstore.Visit {
		t.Helper()
		visits, err := s.Due(t.Context(), shard, 100)
		if err != nil {
			t.Fatal(err)
		}
		return visits
	}
	for shard := range taskstore.SweepShards { // a sweep has seen these servers
		due(shard)
	}
	notify := func() (task procfleet.Task, told, member string) {
		t.Helper()
		task = create(t, s, storetest.Draft(3))
		record(t, s, task.ID, agentResults(0, 3))
		if err := s.Revisit(t.Context(), taskstore.NextVisit{Task: task.ID}); err != nil {
			t.Fatal(err)
		}
		if err := s.Notified(t.Context(), task.ID); err != nil {
			t.Fatal(err)
		}
		return task, "pf:{index}:notified:" + strconv.Itoa(taskstore.Shard(task.Number)), strconv.FormatInt(int64(task.Number), 10)
	}
	over, told, member := notify()
	if visits := due(taskstore.Shard(over.Number)); len(visits) > 0 {
		t.Errorf("a notified task has the visits %v", visits)
	}
	long := float64(time.Now().Add(-2 * time.Minute).UnixMicro())
	if err := cluster.ZAddXX(t.Context(), told, redis.Z{Score: long, Member: member}).Err(); err != nil {
		t.Fatal(err)
	}
	if visits := due(taskstore.Shard(over.Number)); len(visits) > 0 {
		t.Errorf("a task that was notified long ago has the visits %v", visits)
	}
	if err := cluster.ZScore(t.Context(), told, member).Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("a task that was notified long ago is remembered: %v", err)
	}

	again, _, _ := notify()
	nodes[0].Restart(t)
	testenv.Eventually(t, 30*time.Second, func() bool {
		visits, err := s.Due(t.Context(), taskstore.Shard(again.Number), 100)
		return err == nil && len(visits) == 1 && visits[0].Task == again.ID
	}, "a task that was notified before a server restarted is visited")
	if err := s.Settle(t.Context(), taskstore.Visit{Task: again.ID}); err != nil {
		t.Fatal(err)
	}
	if visits := due(taskstore.Shard(again.Number)); len(visits) > 0 {
		t.Errorf("the task has the visits %v after it was settled", visits)
	}
}

func TestBatchThatWasAnsweredIsNotRepeatedForTheOthers(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2)
	s := open(t, redisconn.Options{URL: nodes[0].URL() + "?addr=" + nodes[1].Addr, Patience: 30 * time.Second})
	down, up := nodes[0], nodes[1].Client(t)
	batches := make([]taskstore.Batch, 8)
	for i := range batches {
		batches[i] = taskstore.Batch{Task: create(t, s, storetest.Draft(1)).ID, Results: agentResults(0, 1)}
	}
	down.Stop(t)
	done := make(chan []taskstore.Recorded, 1)
	go func() {
		out, err := s.Record(t.Context(), batches)
		if err != nil {
			t.Errorf("record: %v", err)
		}
		done <- out
	}()
	testenv.Eventually(t, 20*time.Second, func() bool { return len(redistest.Keys(t, up, "*:results:*")) > 0 }, "one node has its results")
	down.Restart(t)
	for i, r := range <-done {
		if r.Applied != 1 || !r.Completed {
			t.Errorf("batch %d: %+v", i, r)
		}
	}
}

func TestWaitingForReplicasInACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2)
	url := nodes[0].URL() + "?addr=" + nodes[1].Addr
	// No node has a replica, so every call that waits for a replica fails.
	s := open(t, redisconn.Options{URL: url, WaitReplicas: 1, WaitTimeout: 10 * time.Millisecond})
	sure := open(t, redisconn.Options{URL: url})
	batches := make([]taskstore.Batch, 8)
	for i := range batches {
		batches[i] = taskstore.Batch{Task: create(t, sure, storetest.Draft(1)).ID, Results: agentResults(0, 1)}
	}
	if _, err := s.Record(t.Context(), batches); err == nil || !strings.Contains(err.Error(), "0 of 1 replicas") {
		t.Errorf("record: %v", err)
	}
	if _, _, err := s.Create(t.Context(), storetest.Draft(1)); err == nil || !strings.Contains(err.Error(), "0 of 1 replicas") {
		t.Errorf("create: %v", err)
	}
}

func TestNodeThatIsGivenItsFirstSlotLearnsTheScripts(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 1)
	s := open(t, redisconn.Options{URL: nodes[0].URL() + "?cluster=true", Patience: 30 * time.Second})
	task := create(t, s, storetest.Draft(3))
	added := redistest.Join(t, nodes)
	m := redistest.BeginMigration(t, []*redistest.Server{nodes[0], added}, "pf:{"+string(task.ID)+"}:head")
	m.Move(t, m.Rest(t)...)
	// The slot is on a node that no client knows as a master yet.
	if err := s.Dispatched(t.Context(), task.ID, []uint64{1}); err != nil {
		t.Errorf("on the new node: %v", err)
	}
	m.Finish(t)
	record(t, s, task.ID, agentResults(0, 3))
}

// TestSlotsThatMoveUnderLoadLoseAndRepeatNothing moves the slots of the index
// and of tasks that are being worked on, back and forth between two nodes.
func TestSlotsThatMoveUnderLoadLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2)
	s := open(t, redisconn.Options{URL: nodes[0].URL() + "?addr=" + nodes[1].Addr, Patience: 30 * time.Second})
	l := startLoad(t, s)
	l.more(t, 6)
	rounds := 4
	if testenv.IsLong() {
		rounds = 12
	}
	for round := range rounds {
		moved := []string{"pf:{index}:clock"}
		for _, id := range l.some(4) {
			moved = append(moved, "pf:{"+string(id)+"}:head")
		}
		for i, key := range moved {
			m := redistest.BeginMigration(t, nodes, key)
			for _, k := range m.Rest(t) {
				m.Move(t, k)
				if (i+round)%2 == 0 {
					<-time.After(time.Millisecond) // the slot is found half way
				}
			}
			m.Finish(t)
		}
		l.more(t, 2)
	}
	for _, node := range nodes {
		c := node.Client(t)
		t.Logf("%s refused with ASK %d times, MOVED %d, TRYAGAIN %d", node.Addr, redistest.Refusals(t, c, "ASK"), redistest.Refusals(t, c, "MOVED"), redistest.Refusals(t, c, "TRYAGAIN"))
	}
	if redistest.Refusals(t, nodes[0].Client(t), "ASK")+redistest.Refusals(t, nodes[1].Client(t), "ASK") == 0 {
		t.Error("no slot was found on its way")
	}
	l.audit(t, s, true)
}

func TestFailOverInAClusterUnderLoadLosesNothingThatWaited(t *testing.T) {
	t.Parallel()
	quick := []string{"--cluster-node-timeout", "2000"}
	masters := redistest.StartCluster(t, 3, quick...)
	all := slices.Clone(masters)
	for _, master := range masters {
		replica := redistest.Join(t, all, quick...)
		replica.Replicate(t, master)
		all = append(all, replica)
	}
	url := masters[0].URL() + "?addr=" + masters[1].Addr + "&addr=" + masters[2].Addr
	careful := open(t, redisconn.Options{URL: url, WaitReplicas: 1, WaitTimeout: 10 * time.Second, Patience: 3 * time.Second})
	// The promoted server has no replica of its own.
	after := open(t, redisconn.Options{URL: url, Patience: 3 * time.Second})
	l := startLoad(t, careful)
	l.more(t, 8)
	masters[0].Stop(t)
	l.use(after)
	l.more(t, 12)
	l.audit(t, after, false)
}
