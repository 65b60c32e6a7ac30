package boltcatalog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
)

// victimTemplates is set for a victim that edits templates in batches.
const victimTemplates = "PROCFLEET_TEST_VICTIM_TEMPLATES"

const (
	templateWriters = 2
	batchSize       = 500
)

var shop = catalog.Business{Account: catalog.DefaultAccount, ID: 2}

// templateVictim edits templates until it is killed, and prints writer and number of each confirmed
// batch. The writers share a business, so that batches share commits.
func templateVictim(path string) error {
	s, err := stores.OpenBolt(path, boltdb.Options{})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make(chan error, templateWriters)
	for w := range templateWriters {
		wg.Go(func() { errs <- editForever(s, w) })
	}
	wg.Wait()
	return <-errs
}

// editForever creates the missing templates of a writer, and repeatedly stores the number of the batch
// in all of them.
func editForever(s *stores.Bolt, w int) error {
	found, err := templatesOf(s, w)
	if err != nil {
		return err
	}
	ids, n := make([]int64, batchSize), 0
	for i := range found {
		ids[i] = found[i].ID
		n, _ = strconv.Atoi(found[i].Values[catalog.AttrStart].String())
	}
	for ; ; n++ {
		done, err := s.EditTemplates(context.Background(), shop, numbered(w, ids, n+1))
		if err != nil {
			return err
		}
		for i := range done {
			ids[i] = done[i].ID
		}
		fmt.Fprintf(os.Stdout, "%d %d\n", w, n+1)
	}
}

// numbered returns a batch that sets the start command of each template to the number, exchanges the
// names among the writer's templates, and binds a module.
func numbered(w int, ids []int64, n int) []catalog.Edit {
	edits := make([]catalog.Edit, len(ids))
	for i, id := range ids {
		edits[i] = catalog.Edit{ID: id, Bind: []string{fmt.Sprint(n % 3)}, Unbind: []string{fmt.Sprint((n + 1) % 3)}, Set: map[catalog.Attribute]catalog.Value{
			catalog.AttrName: catalog.Text(templateName(w, i+n)), catalog.AttrUser: catalog.Text(fmt.Sprint(w)), catalog.AttrStart: catalog.Text(fmt.Sprint(n)),
		}}
	}
	return edits
}

func templateName(w, i int) string { return fmt.Sprintf("%d-%d", w, i%batchSize) }

func templatesOf(s *stores.Bolt, w int) ([]catalog.Template, error) {
	found, _, err := s.SearchTemplates(context.Background(), shop, catalog.Search{
		Conditions: []catalog.Condition{{Attribute: catalog.AttrUser, Comparison: catalog.Is, Values: []catalog.Value{catalog.Text(fmt.Sprint(w))}}},
		Limit:      catalog.MaxTemplatePage,
	})
	return found, err
}

func TestABatchOfTemplatesIsThereWholeOrNotAfterSIGKILL(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tasks.db")
	confirmed := make([]int, templateWriters)
	rounds := 3
	if testenv.IsLong() {
		rounds = 6
	}
	for range rounds {
		for _, line := range testenv.KilledAfter(t, 1+rand.IntN(10), victimFile+"="+path, victimTemplates+"=yes") {
			var w, n int
			if _, err := fmt.Sscan(line, &w, &n); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			confirmed[w] = n
		}
		s := open(t, path, new(atomic.Int64))
		for w, n := range confirmed {
			confirmed[w] = checkWhole(t, s, w, n)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// checkWhole verifies that a writer's templates are those of its last batch, which is the confirmed one or
// the next, and that their names are in use. It returns the number of that batch.
func checkWhole(t *testing.T, s movable, w, confirmed int) int {
	t.Helper()
	found, err := templatesOf(s.Bolt, w)
	if err != nil || len(found) != batchSize && (len(found) > 0 || confirmed > 0) {
		t.Fatalf("writer %d has %d templates, %v; batch %d was confirmed", w, len(found), err, confirmed)
	}
	states, names := map[string]bool{}, map[string]bool{}
	for i := range found {
		states[fmt.Sprint(found[i].Values[catalog.AttrStart], found[i].Modules)] = true
		names[found[i].Name()] = true
	}
	if len(found) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(found[0].Values[catalog.AttrStart].String())
	if len(states) != 1 || len(names) != batchSize || n < confirmed || n > confirmed+1 {
		t.Errorf("writer %d has %d names and is in %d states, such as batch %d; %d was confirmed", w, len(names), len(states), n, confirmed)
	}
	edits := []catalog.Edit{{Set: map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text(templateName(w, n))}}}
	var taken *catalog.DuplicateError
	if _, err := s.EditTemplates(t.Context(), shop, edits); !errors.As(err, &taken) {
		t.Errorf("a name of writer %d is free: %v", w, err)
	}
	return n
}
