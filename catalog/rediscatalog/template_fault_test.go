package rediscatalog_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// A call is repeated if its reply is lost. The changes of the first attempt must not cause a conflict.
func TestWriteWhoseAnswerIsLostIsDoneOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	other := open(t, redisconn.Options{URL: server.URL()})
	id := editAll(t, other, named("there"))[0]
	losing := func(meanwhile func()) *stores.Redis {
		s := open(t, redisconn.Options{URL: server.URL()})
		s.LoseWrite(meanwhile)
		return s
	}

	nothing := func() {}
	web := named("web")
	web.Bind = []string{"m"}
	done, err := losing(nothing).EditTemplates(t.Context(), business(), []catalog.Edit{web, {ID: id, Bind: []string{"m"}}})
	mustNot(t, err)
	for i, d := range done {
		if !slices.Equal(d.Bound, []string{"m"}) {
			t.Errorf("edit %d says that it is bound to %v", i, d.Bound)
		}
	}
	shows(t, other, "", "there", "web")

	// Other changes are made in between.
	var made int64
	done, err = losing(func() {
		made = idOf(t, other, "db")
		if _, err := other.DeleteTemplate(t.Context(), business(), made); err != nil {
			t.Error(err)
		}
	}).EditTemplates(t.Context(), business(), []catalog.Edit{named("db")})
	if err != nil || done[0].ID != made {
		t.Errorf("made process %v, %v; want %d", done, err, made)
	}
	shows(t, other, "db")

	cache := editAll(t, other, named("cache"))[0]
	existed, err := losing(nothing).DeleteTemplate(t.Context(), business(), cache)
	if err != nil || !existed {
		t.Errorf("delete: existed %v, %v", existed, err)
	}

	topology := modules(t, 1)
	topology.Version = 0
	version, err := losing(nothing).SetTopology(t.Context(), business(), topology)
	if err != nil || version != 1 {
		t.Errorf("set topology: version %d, %v", version, err)
	}
	version, err = losing(nothing).SetModuleHosts(t.Context(), business(), "s1", "m0", catalogHosts(t, 2))
	if err != nil || version != 2 {
		t.Errorf("set hosts of a module: version %d, %v", version, err)
	}
}

// idOf returns the id of the template of a name.
func idOf(t *testing.T, s catalog.Store, name string) int64 {
	t.Helper()
	page, total, err := s.SearchTemplates(t.Context(), business(), catalog.Search{Limit: 1, Conditions: []catalog.Condition{
		{Attribute: catalog.AttrName, Comparison: catalog.Is, Values: []catalog.Value{catalog.Text(name)}},
	}})
	if err != nil || total != 1 {
		t.Errorf("there are %d processes %s, %v", total, name, err)
		return 0
	}
	return page[0].ID
}

func TestTemplatesSurviveAKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	opt := redisconn.Options{URL: server.URL(), Patience: 30 * time.Second}
	s := open(t, opt)
	var restart sync.WaitGroup
	goOn(t, s, open(t, opt), func() *stores.Redis {
		restart.Go(func() { server.Restart(t) })
		return s
	})
	restart.Wait()
}

// goOn creates pairs of templates with the store s and deletes some, while the store searching
// searches. In the middle it continues with the store that turn returns. All stores, and a store that
// is opened afterwards, must find exactly the confirmed templates.
func goOn(t *testing.T, s, searching *stores.Redis, turn func() *stores.Redis) {
	t.Helper()
	const n = 40
	var want []string
	for i := range n {
		if i == n/2 {
			s = turn()
		}
		a, b := fmt.Sprintf("p%d-a", i), fmt.Sprintf("p%d-b", i)
		ids := editAll(t, s, named(a), named(b))
		want = append(want, a, b)
		if i%4 == 0 {
			want = want[:len(want)-1]
			if existed, err := s.DeleteTemplate(t.Context(), business(), ids[1]); err != nil || !existed {
				t.Errorf("delete: existed %v, %v", existed, err)
			}
		}
		if _, total, err := searching.SearchTemplates(t.Context(), business(), catalog.Search{Limit: 1}); err != nil || total != len(want) {
			t.Errorf("after %d edits there are %d processes, %v; want %d", i+1, total, err, len(want))
		}
	}
	shows(t, searching, "", want...)
	shows(t, s, "", want...)
	s.Forget()
	shows(t, s, "", want...)
}

// One search reads the restored server, and another one has read the server before the restore. Their
// replies must not be combined.
func TestSearchesOfBeforeAndAfterARestoreAreNotMixed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	opt := redisconn.Options{URL: server.URL(), Patience: 30 * time.Second}
	s, other := open(t, opt), open(t, opt)
	editAll(t, other, named("kept"))
	shows(t, s, "", "kept")
	backup := server.Backup(t)
	s.LoseChanges(func() {
		editAll(t, other, named("lost"))
		shows(t, s, "", "kept", "lost")
		server.Restore(t, backup)
		editAll(t, other, named("new"))
	})
	shows(t, s, "", "kept", "new")
}

// More changes than a script may return at once.
func TestViewThatIsFarBehindIsLoadedAnew(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, other := open(t, redisconn.Options{URL: server.URL()}), open(t, redisconn.Options{URL: server.URL()})
	ids := editAll(t, other, named("web"), named("db"))
	shows(t, s, "", "web", "db")
	_, err := other.DeleteTemplate(t.Context(), business(), ids[0])
	mustNot(t, err)
	gone := make([]redis.Z, 10_000)
	for i := range gone {
		gone[i] = redis.Z{Score: float64(time.Now().UnixMicro()), Member: 1_000_000 + i}
	}
	mustNot(t, server.Client(t).ZAdd(t.Context(), s.BusinessKey(business())+"deleted", gone...).Err())
	shows(t, s, "", "db")
}
