package redisstore_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/catalog/catalogtest"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/redisstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// shippedUser returns what deploy/redis-users.acl grants to a user.
func shippedUser(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.ModuleRoot(), "deploy", "redis-users.acl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rights, is := strings.CutPrefix(line, "user "+name+" "); is {
			return strings.TrimSpace(rights)
		}
	}
	t.Fatalf("there is no user %s", name)
	return ""
}

// TestShippedUserMayDoWhatIsNeededAndNoMore: the suites pass as that user,
// and use every command that it may run, but for those of connections.
//
//nolint:tparallel // what was used is looked at when the suites have ended
func TestShippedUserMayDoWhatIsNeededAndNoMore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rights := shippedUser(t, "worker")
	if of := shippedUser(t, "dispatcher"); of != rights {
		t.Errorf("dispatchers have the rights %s, of which nobody looks whether they need them; workers %s", of, rights)
	}
	server.Do(t, "ACL SETUSER worker reset "+rights+" >secret")
	url := strings.Replace(server.URL(), "//", "//worker@", 1)
	openAs := func(tb testing.TB) *redisstore.Store {
		tb.Helper()
		password := func() (string, error) { return "secret", nil }
		return open(tb, redisstore.Options{URL: url, Password: password, Prefix: "pf:" + tb.Name() + ":"})
	}
	t.Run("suites", func(t *testing.T) {
		storetest.Run(t, storetest.Harness{Open: func(tb testing.TB) taskstore.Store { tb.Helper(); return openAs(tb) }, Orphan: orphan})
		catalogtest.Run(t, catalogtest.Harness{Open: func(tb testing.TB) catalogtest.Store { tb.Helper(); return openAs(tb) }})
	})
	if err := openAs(t).Check(t.Context()); err != nil {
		t.Error(err)
	}

	opt, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	admin := redis.NewClient(opt)
	defer func() { _ = admin.Close() }() // nothing was written
	stats, err := admin.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	// What the suites use on other servers or at other times: wait with
	// --redis-wait-replicas, select with a database other than 0, eval after a
	// fail-over that lost the scripts, unlink for tasks that were half made.
	unseen := map[string]bool{"auth": true, "select": true, "wait": true, "eval": true, "unlink": true}
	for _, granted := range regexp.MustCompile(`\+(\S+)`).FindAllStringSubmatch(rights, -1) {
		if !unseen[granted[1]] && !strings.Contains(stats, "cmdstat_"+granted[1]+":") {
			t.Errorf("the user may run %s, which nothing needs", granted[1])
		}
	}
	refused, err := admin.Do(t.Context(), "ACL", "LOG").Slice()
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range refused {
		t.Errorf("refused: %v", entry)
	}
}

// TestShippedUserMayWaitForReplicas: each key that is written for a wait is
// one that the user may write.
func TestShippedUserMayWaitForReplicas(t *testing.T) {
	t.Parallel()
	master := startMaster(t)
	master.Do(t, "ACL SETUSER worker reset "+shippedUser(t, "worker")+" >secret")
	redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	s := open(t, redisstore.Options{
		URL:          strings.Replace(master.URL(), "//", "//worker:secret@", 1),
		WaitReplicas: 1, WaitTimeout: 10 * time.Second, Patience: time.Minute,
	})
	draft := storetest.Draft(1)
	draft.IdempotencyKey = "deploy-7"
	task, _, err := s.Create(t.Context(), draft)
	if err != nil {
		t.Fatal(err)
	}
	if got := record(t, s, task.ID, agentResults(0, 1)); got.Applied != 1 {
		t.Errorf("record: %+v", got)
	}
}
