package boltcatalog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/boltdb"
)

// searchAll returns the templates with the given user; tests use the user to group templates.
func searchAll(t *testing.T, s *Catalog, user string) []catalog.Template {
	t.Helper()
	page, total, err := s.SearchTemplates(t.Context(), shop, catalog.Search{
		Conditions: []catalog.Condition{{Attribute: catalog.AttrUser, Comparison: catalog.Is, Values: []catalog.Value{catalog.Text(user)}}},
		Limit:      catalog.MaxTemplatePage,
	})
	if err != nil || total != len(page) {
		t.Errorf("search %s: %d of %d, %v", user, len(page), total, err)
	}
	return page
}

// makeTemplates makes n templates of a user and returns their ids.
func makeTemplates(t *testing.T, s *Catalog, user string, n int) []int64 {
	t.Helper()
	edits := make([]catalog.Edit, n)
	for i := range edits {
		edits[i].Set = map[catalog.Attribute]catalog.Value{
			catalog.AttrName: catalog.Text(fmt.Sprint(user, i)), catalog.AttrUser: catalog.Text(user), catalog.AttrStart: catalog.Text("0"),
		}
	}
	ids := make([]int64, n)
	done, err := s.EditTemplates(t.Context(), shop, edits)
	if err != nil {
		t.Error(err)
	}
	for i := range done {
		ids[i] = done[i].ID
	}
	return ids
}

// setAll returns a batch that sets the start command of all templates and exchanges their names.
func setAll(ids []int64, user, start string, round int) []catalog.Edit {
	edits := make([]catalog.Edit, len(ids))
	for i, id := range ids {
		edits[i] = catalog.Edit{ID: id, Set: map[catalog.Attribute]catalog.Value{
			catalog.AttrStart: catalog.Text(start), catalog.AttrName: catalog.Text(fmt.Sprint(user, (i+round)%len(ids))),
		}}
	}
	return edits
}

// While views are repeatedly dropped and loaded, batches change the templates. A search must contain
// either all or no changes of a batch, and the changes of every confirmed batch.
func TestASearchShowsWholeBatchesAndAllThatWereAnswered(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	const writers, size, rounds = 4, 30, 40
	var over atomic.Bool
	var writing, others sync.WaitGroup
	for w := range writers {
		user := fmt.Sprintf("user%d-", w)
		ids := makeTemplates(t, s, user, size)
		answered := new(atomic.Int64)
		writing.Go(func() {
			for n := 1; n <= rounds; n++ {
				if _, err := s.EditTemplates(t.Context(), shop, setAll(ids, user, fmt.Sprint(n), n)); err != nil {
					t.Error(err)
				}
				answered.Store(int64(n))
			}
		})
		others.Go(func() {
			for !over.Load() {
				checkBatch(t, s, user, size, int(answered.Load()))
			}
		})
	}
	others.Go(func() {
		for !over.Load() {
			s.templates.Forget(s.db.Now().Add(time.Hour))
			searchAll(t, s, "nobody")
		}
	})
	writing.Wait()
	over.Store(true)
	others.Wait()
	for w := range writers {
		checkBatch(t, s, fmt.Sprintf("user%d-", w), size, rounds)
	}
}

func checkBatch(t *testing.T, s *Catalog, user string, size, least int) {
	t.Helper()
	found := searchAll(t, s, user)
	if len(found) != size {
		t.Errorf("%d templates of %s, want %d", len(found), user, size)
		return
	}
	starts, names := map[string]bool{}, map[string]bool{}
	var round int
	for i := range found {
		start := found[i].Values[catalog.AttrStart].String()
		starts[start], names[found[i].Name()] = true, true
		if _, err := fmt.Sscan(start, &round); err != nil {
			t.Error(err)
		}
	}
	if len(starts) != 1 || len(names) != size || round < least {
		t.Errorf("%s has %d start commands and %d names in round %d, after %d was answered", user, len(starts), len(names), round, least)
	}
}

// A search returns only templates that match, while templates change so that they match or do not
// match, and are deleted and created again.
func TestASearchFindsOnlyWhatItAskedForWhileThatChanges(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	const size = 50
	ids := makeTemplates(t, s, "in", size)
	give := func(id int64, user string) catalog.Edit {
		return catalog.Edit{ID: id, Set: map[catalog.Attribute]catalog.Value{catalog.AttrUser: catalog.Text(user)}}
	}
	var over atomic.Bool
	var writing, reading sync.WaitGroup
	writing.Go(func() {
		for n := range 100 {
			user := []string{"out", "in"}[n%2]
			if _, err := s.EditTemplates(t.Context(), shop, []catalog.Edit{give(ids[n%size], user), give(ids[(n+size/2)%size], user)}); err != nil {
				t.Error(err)
			}
		}
	})
	writing.Go(func() {
		for n := range 50 {
			made := makeTemplates(t, s, fmt.Sprint("in", n, "-"), 1)
			if existed, err := s.DeleteTemplate(t.Context(), shop, made[0]); err != nil || !existed {
				t.Errorf("delete: %v, %v", existed, err)
			}
		}
	})
	for range 3 {
		reading.Go(func() {
			for !over.Load() {
				for _, found := range searchAll(t, s, "in") {
					if user := found.Values[catalog.AttrUser].String(); user != "in" {
						t.Errorf("found one of %s", user)
					}
				}
			}
		})
	}
	writing.Wait()
	over.Store(true)
	reading.Wait()
}

// If one change of a commit fails, the others are executed again, and some edits are rejected. The
// results of the edits must match the stored and found templates.
func TestEditsInOneCommitDoNotHarmEachOther(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	makeTemplates(t, s, "first", 1)
	searchAll(t, s, "first") // so that there is a view
	release := held(t, s)
	const callers = 20
	made := make([][]catalog.Edited, callers)
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			name := catalog.Text(fmt.Sprint("name ", i%(callers/2))) // so that each is wanted twice
			edit := catalog.Edit{Set: map[catalog.Attribute]catalog.Value{catalog.AttrName: name, catalog.AttrUser: catalog.Text("many")}}
			made[i], errs[i] = s.EditTemplates(t.Context(), shop, []catalog.Edit{edit})
		})
		wg.Go(func() {
			if err := change(t.Context(), s, func(*tx) error { return errors.New("broken") }); err == nil {
				t.Error("what is broken was done")
			}
		})
	}
	release()
	wg.Wait()
	ids := map[int64]bool{}
	for i, err := range errs {
		if err == nil {
			ids[made[i][0].ID] = true
		} else if _, taken := errors.AsType[*catalog.DuplicateError](err); !taken {
			t.Errorf("caller %d: %v", i, err)
		}
	}
	found := searchAll(t, s, "many")
	for i := range found {
		if !ids[found[i].ID] {
			t.Errorf("process %d is there, but nobody was told", found[i].ID)
		}
	}
	if len(ids) != callers/2 || len(found) != callers/2 {
		t.Errorf("%d ids and %d templates of %d names", len(ids), len(found), callers/2)
	}
}

// A failed commit may be on disk, but its changes are not in the view.
func TestAViewThatMissedACommitIsLoadedAnew(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	id := makeTemplates(t, s, "old", 1)[0]
	if n := len(searchAll(t, s, "old")); n != 1 {
		t.Fatalf("%d found", n)
	}
	err := change(t.Context(), s, func(t *tx) error {
		b := t.templateBook(shop)
		batch, lastID, err := b.do([]catalog.Edit{{ID: id, Set: map[catalog.Attribute]catalog.Value{catalog.AttrUser: catalog.Text("new")}}})
		if err != nil {
			return err
		}
		_, err = b.nextRevision()
		return errors.Join(err, b.write(batch, lastID))
	})
	if err != nil {
		t.Fatal(err)
	}
	if before, after := len(searchAll(t, s, "old")), len(searchAll(t, s, "new")); before != 0 || after != 1 {
		t.Errorf("%d found as it was, %d as it is", before, after)
	}
}

func TestASearchThatIsGivenUpLeavesNoHalfLoadedView(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	for n := range 3 {
		makeTemplates(t, s, fmt.Sprint("user", n, "-"), 900)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if _, _, err := s.SearchTemplates(ctx, shop, catalog.Search{Limit: 1}); !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
	}
	if n := len(searchAll(t, s, "user2-")); n != 900 {
		t.Errorf("%d found after a search that was given up", n)
	}
}

func TestTemplatesAndTopologiesDoNotExpire(t *testing.T) {
	t.Parallel()
	ahead := new(atomic.Int64)
	s := openAt(t, ahead)
	ids := makeTemplates(t, s, "web", 2*boltdb.PurgeKeys/3)
	if _, err := s.SetTopology(t.Context(), shop, catalog.Topology{Sets: []catalog.Set{{Name: "s"}}}); err != nil {
		t.Fatal(err)
	}
	searchAll(t, s, "web")
	ahead.Add(int64(10 * 365 * 24 * time.Hour))
	if err := s.db.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.templates.Kept(shop) != nil {
		t.Error("a view is kept that nobody used for years")
	}
	if n, version := len(searchAll(t, s, "web")), topologyNow(t, s).Version; n != len(ids) || version != 1 {
		t.Errorf("%d templates and version %d are left", n, version)
	}
}

func TestWhatNobodySearchesForDoesNotPileUp(t *testing.T) {
	t.Parallel()
	s := openAt(t, new(atomic.Int64))
	ids := makeTemplates(t, s, "web", missedMost/2)
	searchAll(t, s, "web")
	v := s.templates.Kept(shop)
	for n := range 9 {
		if _, err := s.EditTemplates(t.Context(), shop, setAll(ids, "web", fmt.Sprint(n), n)); err != nil {
			t.Fatal(err)
		}
	}
	if v.waiting != len(ids) {
		t.Errorf("%d templates wait after 9 edits of %d", v.waiting, len(ids))
	}
	for _, id := range ids[1:] {
		if existed, err := s.DeleteTemplate(t.Context(), shop, id); err != nil || !existed {
			t.Fatalf("delete: %v, %v", existed, err)
		}
	}
	if found := searchAll(t, s, "web"); len(found) != 1 || found[0].ID != ids[0] || v.waiting != 0 {
		t.Errorf("%d found, %d wait", len(found), v.waiting)
	}
}
