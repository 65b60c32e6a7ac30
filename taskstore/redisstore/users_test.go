package redisstore_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog/catalogtest"
	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
	"github.com/procfleet/procfleet/worker"
)

// shippedUser returns the rights that deploy/redis-users.acl grants to a user.
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

// roles contains a store for each of the two users of one server.
type roles struct{ dispatcher, worker *stores.Redis }

// others embeds the store for the calls of the other role.
type others struct{ *stores.Redis }

// asWorker makes the calls of workers as the user worker, and all others as dispatcher.
type asWorker struct {
	worker.Store
	others
}

// Create creates tasks of callers as dispatcher: workers create only those that undo rollouts.
func (s asWorker) Create(ctx context.Context, d taskstore.Draft) (procfleet.Task, bool, error) {
	if strings.HasPrefix(d.IdempotencyKey, taskstore.UndoKey) {
		return s.Store.Create(ctx, d)
	}
	return s.others.Create(ctx, d)
}

// asDispatcher makes the calls of dispatchers as the user dispatcher, and all others as worker.
type asDispatcher struct {
	dispatcher.Store
	others
}

// Lease acquires a lease of the sweep as worker: dispatchers acquire only those of webhooks.
func (s asDispatcher) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	return s.others.Lease(ctx, name, holder, ttl)
}

// Release releases a lease of the sweep as worker.
func (s asDispatcher) Release(ctx context.Context, name, holder string) error {
	return s.others.Release(ctx, name, holder)
}

// Orphan is the beginning of an acceptance.
func (s asDispatcher) Orphan(ctx context.Context, d taskstore.Draft) (procfleet.TaskID, error) {
	return s.Store.(*stores.Redis).Orphan(ctx, d)
}

// grant makes the shipped users; each test has a prefix of its own, which ends
// in a colon, behind that of the file.
func grant(t *testing.T, server *redistest.Server, prefix string) {
	t.Helper()
	for _, name := range []string{"dispatcher", "worker"} {
		server.Do(t, "ACL SETUSER "+name+" reset "+strings.ReplaceAll(shippedUser(t, name), "~pf:", "~"+prefix)+" >secret")
	}
}

func openAs(tb testing.TB, server *redistest.Server, name string, opt redisconn.Options) *stores.Redis {
	tb.Helper()
	opt.URL = strings.Replace(server.URL(), "//", "//"+name+"@", 1)
	opt.Password = func() (string, error) { return "secret", nil }
	opt.Log = testenv.Log(tb)
	if opt.Patience == 0 {
		opt.Patience = 30 * time.Second
	}
	s, err := stores.OpenRedis(tb.Context(), opt)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// commands returns the commands that the rights of a user permit.
func commands(rights string) []string {
	var all []string
	for _, granted := range regexp.MustCompile(`\+(\S+)`).FindAllStringSubmatch(rights, -1) {
		all = append(all, granted[1])
	}
	return all
}

// The contract suites pass if each call is made by the user of the role that makes it. The suites use
// every command that the users may run, except commands of connections. No user may change keys of
// another role.
//
//nolint:tparallel // the test reads the used commands after the suites have ended
func TestShippedUsersMayDoWhatIsNeededAndNoMore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rights := shippedUser(t, "worker")
	if of := shippedUser(t, "dispatcher"); !slices.Equal(commands(of), commands(rights)) {
		t.Errorf("dispatchers have the commands %s, of which nobody looks whether they need them; workers %s", of, rights)
	}
	grant(t, server, "pf:*:")
	both := func(tb testing.TB) roles {
		tb.Helper()
		opt := redisconn.Options{Prefix: "pf:" + tb.Name() + ":"}
		return roles{openAs(tb, server, "dispatcher", opt), openAs(tb, server, "worker", opt)}
	}
	type store interface {
		taskstore.Store
		catalogtest.Store
	}
	for name, split := range map[string]func(roles) store{
		"worker":     func(r roles) store { return asWorker{r.worker, others{r.dispatcher}} },
		"dispatcher": func(r roles) store { return asDispatcher{r.dispatcher, others{r.worker}} },
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Harness{Open: func(tb testing.TB) taskstore.Store { tb.Helper(); return split(both(tb)) }, Orphan: orphan, Light: true})
			catalogtest.Run(t, catalogtest.Harness{Open: func(tb testing.TB) catalogtest.Store { tb.Helper(); return split(both(tb)) }, Light: true})
		})
	}
	r := both(t)
	for _, s := range []*stores.Redis{r.dispatcher, r.worker} {
		if err := s.Conn.Check(t.Context()); err != nil {
			t.Error(err)
		}
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
	for _, granted := range commands(rights) {
		if !unseen[granted] && !strings.Contains(stats, "cmdstat_"+granted+":") {
			t.Errorf("the users may run %s, which nothing needs", granted)
		}
	}
	refused, err := admin.Do(t.Context(), "ACL", "LOG").Slice()
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range refused {
		t.Errorf("refused: %v", entry)
	}
	if held, err := r.dispatcher.Lease(t.Context(), "webhook/shop/alerts", "a", time.Minute); err != nil || !held {
		t.Errorf("a dispatcher's lease of a webhook: %v, %v", held, err)
	}
	for name, foreign := range map[string][]string{
		"worker":     {"{business:1}:templates", "{business:1}:topology", "template-ids", "request:1", "bound"},
		"dispatcher": {"lease:sweep"},
	} {
		as := *opt
		as.Username, as.Password = name, "secret"
		c := redis.NewClient(&as)
		defer func() { _ = c.Close() }() // nothing was written
		for _, key := range foreign {
			if err := c.HSet(t.Context(), "pf:x:"+key, "a", "b").Err(); !redis.HasErrorPrefix(err, "NOPERM") {
				t.Errorf("%s may write %s: %v", name, key, err)
			}
		}
	}
}

// TestShippedUsersMayWaitForReplicas verifies that the shipped Redis users have the rights
// to write the keys with which the store waits for replicas.
func TestShippedUsersMayWaitForReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.StartMaster(t)
	grant(t, master, "pf:")
	redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	opt := redisconn.Options{WaitReplicas: 1, WaitTimeout: 10 * time.Second, Patience: time.Minute}
	draft := storetest.Draft(1)
	draft.IdempotencyKey = "deploy-7"
	task, _, err := openAs(t, master, "dispatcher", opt).Create(t.Context(), draft)
	if err != nil {
		t.Fatal(err)
	}
	if got := record(t, openAs(t, master, "worker", opt), task.ID, agentResults(0, 1)); got.Applied != 1 {
		t.Errorf("record: %+v", got)
	}
}
