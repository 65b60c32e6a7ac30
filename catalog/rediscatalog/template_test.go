package rediscatalog_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
)

// named returns an edit that creates a template.
func named(name string) catalog.Edit {
	return catalog.Edit{Set: map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text(name)}}
}

// namedAll returns edits that create the templates p0, p1 and so on.
func namedAll(n int) []catalog.Edit {
	edits := make([]catalog.Edit, n)
	for i := range edits {
		edits[i] = named(fmt.Sprintf("p%d", i))
	}
	return edits
}

func editAll(t *testing.T, s catalog.Store, edits ...catalog.Edit) []int64 {
	t.Helper()
	var ids []int64
	for some := range slices.Chunk(edits, catalog.MaxEdits) {
		done, err := s.EditTemplates(t.Context(), business(), some)
		mustNot(t, err)
		for _, d := range done {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// found returns the names of all templates whose name has a part, and fails
// unless their number is right.
func found(t *testing.T, s catalog.Store, part string) []string {
	t.Helper()
	var names []string
	q := catalog.Search{Limit: catalog.MaxTemplatePage, Conditions: []catalog.Condition{
		{Attribute: catalog.AttrName, Comparison: catalog.Contains, Values: []catalog.Value{catalog.Text(part)}},
	}}
	for {
		page, total, err := s.SearchTemplates(t.Context(), business(), q)
		mustNot(t, err)
		for i := range page {
			names = append(names, page[i].Name())
		}
		if q.Start += q.Limit; q.Start >= total {
			if len(names) != total {
				t.Errorf("pages show %d processes of %d", len(names), total)
			}
			return names
		}
	}
}

func shows(t *testing.T, s catalog.Store, part string, want ...string) {
	t.Helper()
	if got := found(t, s, part); !slices.Equal(got, want) {
		t.Errorf("a search for %q finds %v, want %v", part, got, want)
	}
}

func rename(id int64, name string) catalog.Edit {
	e := named(name)
	e.ID = id
	return e
}

func TestEveryDispatcherFindsWhatAnyOneHasEdited(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := open(t, redisconn.Options{URL: server.URL()}), open(t, redisconn.Options{URL: server.URL()})
	shows(t, b, "")
	ids := editAll(t, a, named("nginx"), named("mysql"))
	shows(t, b, "", "nginx", "mysql")
	editAll(t, b, rename(ids[0], "mysql"), rename(ids[1], "nginx")) // they swap
	shows(t, a, "", "mysql", "nginx")
	editAll(t, a, rename(ids[0], "redis"))
	shows(t, b, "mysql")
	existed, err := a.DeleteTemplate(t.Context(), business(), ids[1])
	if err != nil || !existed {
		t.Errorf("delete: existed %v, %v", existed, err)
	}
	shows(t, b, "", "redis")
	editAll(t, b, namedAll(2300)...) // several calls when they are read
	if got := len(found(t, a, "p")); got != 2300 {
		t.Errorf("found %d processes of 2300", got)
	}
	if got := len(found(t, open(t, redisconn.Options{URL: server.URL()}), "")); got != 2301 {
		t.Errorf("a dispatcher that starts finds %d processes of 2301", got)
	}
}

// In TestSearchKnowsWhatWasAnsweredBefore dispatchers edit and search concurrently, while their views are
// loaded, updated and dropped. A search must find all confirmed edits.
func TestSearchKnowsWhatWasAnsweredBefore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dispatchers := make([]*stores.Redis, 3)
	for i := range dispatchers {
		dispatchers[i] = open(t, redisconn.Options{URL: server.URL()})
	}
	ids := editAll(t, dispatchers[0], namedAll(1200)...)
	var generation atomic.Int64 // every name that is a lower one's was answered
	var writer, readers sync.WaitGroup
	over := make(chan struct{})
	writer.Go(func() {
		defer close(over)
		for n := range int64(25) {
			edits := []catalog.Edit{rename(ids[3*n], fmt.Sprintf("g%d-a", n)), rename(ids[1199-n], fmt.Sprintf("g%d-b", n))}
			if _, err := dispatchers[n%3].EditTemplates(t.Context(), business(), edits); err != nil {
				t.Errorf("edit: %v", err)
			}
			if _, err := dispatchers[(n+1)%3].DeleteTemplate(t.Context(), business(), ids[3*n+1]); err != nil {
				t.Errorf("delete: %v", err)
			}
			generation.Store(n + 1)
		}
	})
	for i := range 6 {
		readers.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				least := generation.Load()
				_, total, err := dispatchers[i%3].SearchTemplates(t.Context(), business(), catalog.Search{Limit: 1, Conditions: []catalog.Condition{
					{Attribute: catalog.AttrName, Comparison: catalog.Contains, Values: []catalog.Value{catalog.Text("g")}},
				}})
				most := generation.Load() + 1
				if err != nil || total%2 != 0 || int64(total) < 2*least || int64(total) > 2*most {
					t.Errorf("found %d, %v; want an even number from %d to %d", total, err, 2*least, 2*most)
					return
				}
				_, total, err = dispatchers[i%3].SearchTemplates(t.Context(), business(), catalog.Search{Limit: 1})
				if most := 1200 - int(least); err != nil || total > most {
					t.Errorf("found %d, %v; want at most %d", total, err, most)
					return
				}
				if i == 0 {
					dispatchers[0].Forget()
				}
			}
		})
	}
	writer.Wait()
	readers.Wait()
}

func TestPageThatChangesAllTheTimeHasOnlyWhatIsFound(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, other := open(t, redisconn.Options{URL: server.URL()}), open(t, redisconn.Options{URL: server.URL()})
	ids := editAll(t, other, named("web-1"), named("web-2"), named("web-3"))
	reads := 0
	s.BeforePages(func() {
		if reads++; reads < 5 {
			editAll(t, other, catalog.Edit{ID: ids[1], Bind: []string{fmt.Sprint("m", reads)}})
			return
		}
		editAll(t, other, rename(ids[1], "db"))
	})
	page, _, err := s.SearchTemplates(t.Context(), business(), catalog.Search{Limit: 3, Sort: catalog.AttrName, Descending: true, Conditions: []catalog.Condition{
		{Attribute: catalog.AttrName, Comparison: catalog.Contains, Values: []catalog.Value{catalog.Text("web")}},
	}})
	mustNot(t, err)
	if len(page) != 2 || page[0].ID != ids[2] || page[1].ID != ids[0] {
		t.Errorf("after %d readings the page is %v", reads, page)
	}
}

func TestManyDispatchersThatEditOneProcessAllSucceed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dispatchers := []*stores.Redis{open(t, redisconn.Options{URL: server.URL()}), open(t, redisconn.Options{URL: server.URL()})}
	id := editAll(t, dispatchers[0], named("web"))[0]
	var writers sync.WaitGroup
	for i := range 50 {
		writers.Go(func() {
			module := fmt.Sprintf("m%02d", i)
			done, err := dispatchers[i%2].EditTemplates(t.Context(), business(), []catalog.Edit{{ID: id, Bind: []string{module}}})
			if err != nil || !slices.Equal(done[0].Bound, []string{module}) {
				t.Errorf("bind to %s: %v, %v", module, done, err)
			}
		})
	}
	writers.Wait()
	got, err := dispatchers[1].Templates(t.Context(), business(), []int64{id})
	if err != nil || len(got[0].Modules) != 50 {
		t.Errorf("the process is %+v, %v", got, err)
	}
}

func TestTemplatesOfABusinessAreOneSlot(t *testing.T) {
	t.Parallel()
	server := redistest.StartCluster(t, 1)[0]
	s, c := open(t, redisconn.Options{URL: server.URL() + "?cluster=true"}), server.Client(t)
	ids := editAll(t, s, namedAll(3)...)
	_, err := s.DeleteTemplate(t.Context(), business(), ids[0])
	mustNot(t, err)
	_, err = s.SetTopology(t.Context(), business(), modules(t, 1))
	mustNot(t, err)
	slots := make(map[int64]bool)
	all := redistest.Keys(t, c, "pf:{business:*")
	for _, key := range all {
		slot, err := c.ClusterKeySlot(t.Context(), key).Result()
		mustNot(t, err)
		slots[slot] = true
		if ttl, err := c.PTTL(t.Context(), key).Result(); err != nil || ttl != -1 {
			t.Errorf("key %s ends in %v, %v", key, ttl, err)
		}
	}
	if len(slots) != 1 || len(all) != 6 {
		t.Errorf("keys are in %d slots: %v", len(slots), all)
	}
}

func TestWhatIsKeptOfWritesIsBounded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, searching, c := open(t, redisconn.Options{URL: server.URL()}), open(t, redisconn.Options{URL: server.URL()}), server.Client(t)
	ids := editAll(t, s, namedAll(30)...)
	shows(t, searching, "p1", "p1", "p10", "p11", "p12", "p13", "p14", "p15", "p16", "p17", "p18", "p19")
	for _, id := range ids[20:] {
		_, err := s.DeleteTemplate(t.Context(), business(), id)
		mustNot(t, err)
	}
	base := s.BusinessKey(business())
	// As if the write were a long time ago, with many writes since.
	old := time.Now().Add(-time.Hour).UnixMicro()
	for _, key := range []string{"writes", "deleted"} {
		all, err := c.ZRangeWithScores(t.Context(), base+key, 0, -1).Result()
		mustNot(t, err)
		for i := range all {
			all[i].Score = float64(old) + float64(i)
		}
		mustNot(t, c.ZAdd(t.Context(), base+key, all...).Err())
	}
	recent := make([]redis.Z, 990)
	for i := range recent {
		recent[i] = redis.Z{Score: float64(time.Now().Add(-time.Minute).UnixMicro()), Member: fmt.Sprint("write ", i)}
	}
	mustNot(t, c.ZAdd(t.Context(), base+"writes", recent...).Err())
	for i := range 10 {
		editAll(t, s, rename(ids[0], fmt.Sprintf("n%d", i)))
	}
	for key, most := range map[string]int64{"writes": 1000, "deleted": 0} {
		if n, err := c.ZCard(t.Context(), base+key).Result(); n > most || err != nil {
			t.Errorf("%d %s are kept, %v", n, key, err)
		}
	}
	shows(t, searching, "p1", "p1", "p10", "p11", "p12", "p13", "p14", "p15", "p16", "p17", "p18", "p19")
	shows(t, searching, "p2", "p2")
	shows(t, searching, "n", "n9")
}

func TestTemplatesWaitForReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t) // it has none
	ids := editAll(t, open(t, redisconn.Options{URL: server.URL()}), named("web"), named("db"))
	s := open(t, redisconn.Options{URL: server.URL(), WaitReplicas: 1, WaitTimeout: 10 * time.Millisecond})
	s.SetPatience(100 * time.Millisecond)
	for name, call := range map[string]func() error{
		"create": func() error { _, err := s.EditTemplates(t.Context(), business(), namedAll(1)); return err },
		"edit": func() error {
			_, err := s.EditTemplates(t.Context(), business(), []catalog.Edit{rename(ids[0], "x")})
			return err
		},
		"delete":       func() error { _, err := s.DeleteTemplate(t.Context(), business(), ids[1]); return err },
		"set topology": func() error { _, err := s.SetTopology(t.Context(), business(), modules(t, 1)); return err },
	} {
		if err := call(); !errors.Is(err, taskstore.ErrUnavailable) {
			t.Errorf("%s without a replica: %v", name, err)
		}
	}
}

// After a restore other templates may have the lost names, and another write is the newest.
func TestSearchAfterARestoreFindsWhatThereIs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisconn.Options{URL: server.URL(), Patience: 30 * time.Second})
	ids := editAll(t, s, named("kept"), named("deleted later"))
	shows(t, s, "", "kept", "deleted later")
	backup := server.Backup(t)
	lost := editAll(t, s, named("lost"), rename(ids[0], "renamed"))[0]
	_, err := s.DeleteTemplate(t.Context(), business(), ids[1])
	mustNot(t, err)
	shows(t, s, "", "renamed", "lost")
	server.Restore(t, backup)
	after := editAll(t, s, named("lost"), named("new"))
	if after[0] <= lost {
		t.Errorf("id %d was given after %d", after[0], lost)
	}
	shows(t, s, "", "kept", "deleted later", "lost", "new")
	// A store that has not received the lost ids allots them again, but no existing id.
	other := open(t, redisconn.Options{URL: server.URL()})
	mustNot(t, server.Client(t).Set(t.Context(), "pf:template-ids", ids[0]-1, 0).Err())
	if id := editAll(t, other, named("other"))[0]; slices.Contains(append(after, ids...), id) {
		t.Errorf("id %d was given twice", id)
	}
	shows(t, s, "o", "other", "lost")
}

func TestFullServerRefusesABatchWhole(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := open(t, redisconn.Options{URL: server.URL(), Patience: time.Hour}), server.Client(t)
	editAll(t, s, named("web"))
	redistest.LimitMemory(t, c, -1)
	_, err := s.EditTemplates(t.Context(), business(), namedAll(1000))
	if !errors.Is(err, taskstore.ErrUnavailable) {
		t.Errorf("edit of a full server: %v", err)
	}
	redistest.LimitMemory(t, c, 100<<10) // there is room for a part
	edits := namedAll(1000)
	for i := range edits {
		edits[i].Set[catalog.AttrStart] = catalog.Text(strings.Repeat("x", catalog.MaxLongText))
	}
	if _, err := s.EditTemplates(t.Context(), business(), edits); err != nil {
		shows(t, s, "", "web")
	} else if got := len(found(t, s, "")); got != 1001 {
		t.Errorf("found %d processes", got)
	}
}
