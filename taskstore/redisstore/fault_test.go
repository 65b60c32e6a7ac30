package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/redisstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// impatient opens a store for calls that must fail. On a busy machine other calls may take longer than its
// patience.
func impatient(t *testing.T, server *redistest.Server) *redisstore.Store {
	t.Helper()
	s := open(t, redisconn.Options{URL: server.URL()})
	s.SetPatience(300 * time.Millisecond)
	return s
}

func create(t *testing.T, s taskstore.Store, d taskstore.Draft) procfleet.Task {
	t.Helper()
	task, created, err := s.Create(t.Context(), d)
	if err != nil || !created {
		t.Fatalf("create: created %v, %v", created, err)
	}
	return task
}

func agentResults(begin, end int) []procfleet.Result {
	var rs []procfleet.Result
	for i := begin; i < end; i++ {
		rs = append(rs, procfleet.Result{Item: i, Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent, Message: "success"})
	}
	return rs
}

func record(t *testing.T, s taskstore.Store, id procfleet.TaskID, rs []procfleet.Result) taskstore.Recorded {
	t.Helper()
	out, err := s.Record(t.Context(), []taskstore.Batch{{Task: id, Results: rs}})
	if err != nil {
		t.Fatalf("record: %v", err)
	}
	return out[0]
}

// mustBeUnavailable fails unless call soon returns ErrUnavailable.
func mustBeUnavailable(t *testing.T, what string, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := call(ctx); !errors.Is(err, taskstore.ErrUnavailable) {
		t.Errorf("%s: %v, want ErrUnavailable", what, err)
	}
}

// use writes a key of every kind.
func use(t *testing.T, s taskstore.Store) procfleet.Task {
	t.Helper()
	d := storetest.Draft(2500)
	d.IdempotencyKey, d.BodyHash = "key", "body"
	task := create(t, s, d)
	if b, err := s.Begin(t.Context(), task.ID, 0, 0); err != nil || b.Gate != taskstore.GateOpen {
		t.Fatalf("begin: %s, %v", b.Gate, err)
	}
	record(t, s, task.ID, agentResults(0, 2500))
	if _, err := s.Lease(t.Context(), "sweep", "worker", time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := s.Announce(t.Context(), []taskstore.Announcement{{Host: d.Chunks[0].Items[0].Target.Host, AgentID: "a", Instance: "i"}}); err != nil {
		t.Fatal(err)
	}
	return task
}

func TestEveryKeyButTheClockAndTheFormatExpires(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	task := use(t, open(t, redisconn.Options{URL: server.URL(), Prefix: "fleet:"}))
	c := server.Client(t)
	all := redistest.Keys(t, c, "*")
	if len(all) < 20 {
		t.Errorf("only %d keys: %v", len(all), all)
	}
	for _, key := range all {
		ttl, err := c.PTTL(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(key, "fleet:") {
			t.Errorf("key %s is without the prefix", key)
		}
		if ttl < 0 != (key == "fleet:{index}:clock" || key == "fleet:{index}:format") {
			t.Errorf("key %s ends in %v", key, ttl)
		}
		if at := time.Now().Add(ttl); strings.Contains(key, string(task.ID)) && at.Sub(task.ExpiresAt).Abs() > time.Minute {
			t.Errorf("key %s ends at %v, the task at %v", key, at, task.ExpiresAt)
		}
	}
}

func TestATaskIsOneSlot(t *testing.T) {
	t.Parallel()
	server := redistest.StartCluster(t, 1)[0]
	task := use(t, open(t, redisconn.Options{URL: server.URL() + "?cluster=true"}))
	c := server.Client(t)
	slots := make(map[int64][]string)
	for _, key := range redistest.Keys(t, c, "*"+string(task.ID)+"*") {
		slot, err := c.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		slots[slot] = append(slots[slot], key)
	}
	if len(slots) != 1 {
		t.Errorf("keys of one task are in %d slots: %v", len(slots), slots)
	}
}

func TestWhatWasConfirmedSurvivesAKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisconn.Options{URL: server.URL(), Patience: 20 * time.Second})
	big := create(t, s, storetest.Draft(5000))

	var created []procfleet.Task
	var writers sync.WaitGroup
	enough := make(chan struct{})
	writers.Go(func() {
		defer close(enough)
		for i := range 300 {
			task, _, err := s.Create(t.Context(), storetest.Draft(1))
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			if created = append(created, task); i == 100 {
				enough <- struct{}{}
			}
		}
	})
	applied := 0
	writers.Go(func() {
		for at := 0; at < 5000; at += 10 {
			out, err := s.Record(t.Context(), []taskstore.Batch{{Task: big.ID, Results: agentResults(at, at+10)}})
			if err != nil {
				t.Errorf("record: %v", err)
				return
			}
			applied += out[0].Applied
		}
	})
	<-enough
	server.Restart(t)
	<-enough
	writers.Wait()
	for _, task := range created {
		if got, err := s.Task(t.Context(), task.ID); err != nil || got.Items != 1 {
			t.Errorf("task %s, which was confirmed: %v", task.ID, err)
		}
	}
	got, err := s.Task(t.Context(), big.ID)
	if err != nil || got.Counts[procfleet.StateSucceeded] != 5000 || got.State != procfleet.TaskFinished {
		t.Errorf("after every result was confirmed the task is %+v, %v", got, err)
	}
	// A batch that was repeated because its answer was lost counts as a repeat.
	if applied < 5000-10 || applied > 5000 {
		t.Errorf("%d results were applied", applied)
	}
}

func TestUnavailableServerIsSaidInTimeAndRiddenOut(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, hasty := open(t, redisconn.Options{URL: server.URL(), Patience: 30 * time.Second}), impatient(t, server)
	task := create(t, s, storetest.Draft(3))
	server.Stop(t)
	mustBeUnavailable(t, "create", func(ctx context.Context) error {
		_, _, err := hasty.Create(ctx, storetest.Draft(1))
		return err
	})
	mustBeUnavailable(t, "task", func(ctx context.Context) error {
		_, err := hasty.Task(ctx, task.ID)
		return err
	})
	mustBeUnavailable(t, "open", func(ctx context.Context) error {
		_, err := redisstore.Open(ctx, redisconn.Options{URL: server.URL(), Patience: 100 * time.Millisecond, Log: testenv.Log(t)})
		return err
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	if _, err := s.Task(ctx, task.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was cancelled: %v", err)
	}
	server.Restart(t) // which also forgets the scripts
	if got := record(t, s, task.ID, agentResults(0, 3)); !got.Completed {
		t.Errorf("after the restart: %+v", got)
	}
}

func TestForgottenScriptsAreLoadedAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisconn.Options{URL: server.URL()})
	task := create(t, s, storetest.Draft(3))
	for range 3 {
		if err := server.Client(t).ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		out, err := s.Record(t.Context(), []taskstore.Batch{
			{Task: task.ID, Results: agentResults(0, 1)}, {Task: task.ID, Results: agentResults(1, 2)},
		})
		if err != nil || !out[0].Known || !out[1].Known {
			t.Fatalf("record: %+v, %v", out, err)
		}
	}
}

func TestReadOnlyServerIsUnavailable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, hasty := open(t, redisconn.Options{URL: server.URL(), Patience: 30 * time.Second}), impatient(t, server)
	create(t, s, storetest.Draft(1))
	c := server.Client(t)
	if err := c.ReplicaOf(t.Context(), "127.0.0.1", strconv.Itoa(testenv.FreePort(t))).Err(); err != nil {
		t.Fatal(err)
	}
	mustBeUnavailable(t, "create", func(ctx context.Context) error {
		_, _, err := hasty.Create(ctx, storetest.Draft(1))
		return err
	})
	if err := c.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	create(t, s, storetest.Draft(1))
}

func TestFullServerIsUnavailableAndNothingIsHalfDone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisconn.Options{URL: server.URL(), Patience: time.Hour}) // a full server is not waited for
	c := server.Client(t)
	task := create(t, s, storetest.Draft(600))
	before := len(redistest.Keys(t, c, "*"))

	redistest.LimitMemory(t, c, -1)
	mustBeUnavailable(t, "create", func(ctx context.Context) error {
		_, _, err := s.Create(ctx, storetest.Draft(600))
		return err
	})
	mustBeUnavailable(t, "record", func(ctx context.Context) error {
		_, err := s.Record(ctx, []taskstore.Batch{{Task: task.ID, Results: agentResults(0, 600)}})
		return err
	})
	if got := len(redistest.Keys(t, c, "*")); got != before {
		t.Errorf("%d keys became %d", before, got)
	}
	if got, err := s.Task(t.Context(), task.ID); err != nil || got.Counts[procfleet.StatePending] != 600 {
		t.Errorf("the task is %+v, %v", got, err)
	}

	// A task of several mebibytes finds no room in the middle.
	redistest.LimitMemory(t, c, 3<<20)
	mustBeUnavailable(t, "create of a big task", func(ctx context.Context) error {
		_, _, err := s.Create(ctx, redisstore.BigDraft(8))
		return err
	})
	if left := redistest.Keys(t, c, "*:chunk:*"); len(left) != 3 {
		t.Errorf("%d chunks are left, want the 3 of the task that is there", len(left))
	}
	if err := c.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if got := record(t, s, task.ID, agentResults(0, 600)); got.Applied != 600 || !got.Completed {
		t.Errorf("with room again: %+v", got)
	}
	tasks, err := s.Tasks(t.Context(), taskstore.TaskQuery{Limit: 10})
	if err != nil || len(tasks) != 1 {
		t.Errorf("%d tasks, %v; want the one that was confirmed", len(tasks), err)
	}
}

func TestNumbersGoForwardWhateverBecomesOfTheClockKey(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisconn.Options{URL: server.URL()})
	c := server.Client(t)
	now, err := s.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ahead := now.Add(time.Hour).UnixMicro()
	if err := c.Set(t.Context(), "pf:{index}:clock", ahead, 0).Err(); err != nil {
		t.Fatal(err)
	}
	first := create(t, s, storetest.Draft(1))
	if n := int64(first.Number); n <= ahead || n > ahead+taskstore.SweepShards { // the next one of its shard
		t.Errorf("number %d follows %d", n, ahead)
	}
	if first.CreatedAt.Sub(now).Abs() > time.Minute {
		t.Errorf("created at %v, by a clock that says %v", first.CreatedAt, now)
	}
	if err := c.Del(t.Context(), "pf:{index}:clock").Err(); err != nil {
		t.Fatal(err)
	}
	if second := create(t, s, storetest.Draft(1)); second.Number <= first.Number {
		t.Errorf("number %d came after %d", second.Number, first.Number)
	}
	// Other dispatchers have not received these numbers. They are allotted numbers of existing
	// tasks, and continue until they receive a free number.
	taken := create(t, s, storetest.Draft(1)).Number
	numbers := map[procfleet.Number]bool{taken: true}
	for range taskstore.SweepShards {
		if err := c.Set(t.Context(), "pf:{index}:clock", int64(taken)-1, 0).Err(); err != nil {
			t.Fatal(err)
		}
		n := create(t, open(t, redisconn.Options{URL: server.URL()}), storetest.Draft(1)).Number
		if n <= taken || numbers[n] {
			t.Errorf("number %d was given again after %d", n, taken)
		}
		numbers[n] = true
	}
}

func TestBigTaskIsMadeByOneOfMany(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisconn.Options{URL: server.URL()})
	var mu sync.Mutex
	var makers sync.WaitGroup
	ids, made := make(map[procfleet.TaskID]bool), 0
	for range 4 {
		makers.Go(func() {
			d := redisstore.BigDraft(3) // several calls
			d.IdempotencyKey, d.BodyHash = "key", "body"
			task, created, err := s.Create(t.Context(), d)
			if err != nil {
				t.Errorf("create: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[task.ID] = true
			if created {
				made++
			}
		})
	}
	makers.Wait()
	if len(ids) != 1 || made != 1 {
		t.Errorf("%d tasks, %d times made", len(ids), made)
	}
	if left := redistest.Keys(t, server.Client(t), "*:writer"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWaitingForReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.StartMaster(t)
	s := open(t, redisconn.Options{URL: master.URL(), WaitReplicas: 1, WaitTimeout: 5 * time.Second})
	alone := open(t, redisconn.Options{URL: master.URL(), WaitReplicas: 1, WaitTimeout: 20 * time.Millisecond})
	mustBeUnavailable(t, "create without a replica", func(ctx context.Context) error {
		_, _, err := alone.Create(ctx, storetest.Draft(1))
		return err
	})
	host, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		t.Fatal(err)
	}
	replica := redistest.Start(t, "--replicaof", fmt.Sprintf("%s %s", host, port))
	// The first calls wait until the replica has caught up.
	var task procfleet.Task
	testenv.Eventually(t, 20*time.Second, func() bool {
		var err error
		task, _, err = s.Create(t.Context(), storetest.Draft(3))
		return err == nil
	}, "the replica confirms a task")
	if got := record(t, s, task.ID, agentResults(0, 3)); got.Applied != 3 {
		t.Errorf("record: %+v", got)
	}
	master.Stop(t)
	promoted := replica.Client(t)
	if err := promoted.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, redisconn.Options{URL: replica.URL()}).Task(t.Context(), task.ID)
	if err != nil || got.State != procfleet.TaskFinished {
		t.Errorf("after the fail-over the task is %+v, %v", got, err)
	}
}

func TestServerThatCannotBeCheckedIsWarnedAbout(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	if err := server.Client(t).Do(t.Context(), "ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	log, hook := logtest.NewNullLogger()
	s, err := redisstore.Open(t.Context(), redisconn.Options{URL: "redis://limited:secret@" + server.Addr, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if e := hook.LastEntry(); e == nil || e.Level != logrus.WarnLevel {
		t.Errorf("last log entry is %+v", e)
	}
	create(t, s, storetest.Draft(1))
}

// After a restore, writes since the backup are lost. Workers and agents can finish the tasks that were
// open in the backup, and no task number is allotted twice.
func TestRestoreOfABackupGoesOnFromThere(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	opt := redisconn.Options{URL: server.URL(), Patience: 30 * time.Second}
	s := open(t, opt)
	kept := create(t, s, storetest.Draft(3))
	backup := server.Backup(t)
	record(t, s, kept.ID, agentResults(0, 3))
	lost := create(t, s, storetest.Draft(1))

	server.Restore(t, backup)
	s = open(t, opt)
	if got, err := s.Task(t.Context(), kept.ID); err != nil || got.Counts[procfleet.StatePending] != 3 {
		t.Errorf("the task of before the backup is %+v, %v", got, err)
	}
	if got := record(t, s, kept.ID, agentResults(0, 3)); got.Applied != 3 || !got.Completed {
		t.Errorf("results that come again: %+v", got)
	}
	if got := record(t, s, lost.ID, agentResults(0, 1)); got.Known {
		t.Errorf("results of a task that is gone: %+v", got)
	}
	if next := create(t, s, storetest.Draft(1)); next.Number <= lost.Number {
		t.Errorf("number %d came after %d", next.Number, lost.Number)
	}
}

// A call whose context ends must return the cause, for example that Redis refuses every connection,
// and not only "context deadline exceeded".
func TestACallerWhoseTimeEndsIsToldWhatWasWrong(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisconn.Options{URL: server.URL()})
	server.Stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := s.Now(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
}

func TestBindingsWaitForReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t) // it has none
	s := open(t, redisconn.Options{URL: server.URL(), WaitReplicas: 1, WaitTimeout: 10 * time.Millisecond})
	s.SetPatience(100 * time.Millisecond)
	host := storetest.Draft(1).Chunks[0].Items[0].Target.Host
	if err := s.Bind(t.Context(), []taskstore.AgentBinding{{AgentID: "a", Host: host}}); !errors.Is(err, taskstore.ErrUnavailable) {
		t.Errorf("bind without a replica: %v", err)
	}
}

// The repeat must return the changes of the first attempt, which it finds already made.
func TestRepeatAfterALostAnswerAnswersWhatTheFirstAttemptChanged(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	losing := open(t, redisconn.Options{URL: server.URL()})
	losing.LoseAnswers()
	lastResults(t, open(t, redisconn.Options{URL: server.URL()}), losing)
}

// lastResults records the last results of a task with the store losing, which loses the reply, and verifies
// that the call still reports the end of the task. s loses no reply.
func lastResults(t *testing.T, s, losing *redisstore.Store) {
	t.Helper()
	task := create(t, s, storetest.Draft(3))
	if got := record(t, losing, task.ID, agentResults(0, 3)); !got.Completed {
		t.Errorf("record of the last results: %+v", got)
	}
	if got := record(t, s, task.ID, agentResults(0, 3)); got.Completed {
		t.Errorf("record of the same again: %+v", got)
	}
}
