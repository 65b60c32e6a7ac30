package templates

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/catalogtest"
)

var (
	texts       = rapid.SampledFrom([]string{"", "web", "web-1", "web-2", "Web", "db", "b", "数据库", "%", "8080"})
	modules     = rapid.SampledFrom([]string{"web", "db", "idle", "Web", "web-1"})
	comparisons = rapid.SampledFrom([]catalog.Comparison{
		catalog.Is, catalog.IsNot, catalog.In, catalog.NotIn, catalog.Contains, catalog.Less, catalog.AtMost, catalog.More, catalog.AtLeast,
	})
	// searched are attributes of every type, of which all tests have few values.
	searched = rapid.SampledFrom([]catalog.Attribute{
		catalog.AttrName, catalog.AttrPort, catalog.AttrFuncName, catalog.AttrTimeout, catalog.AttrAutoStart, catalog.AttrBindIP,
		catalog.AttrID, catalog.AttrModule, catalog.AttrCreatedAt, catalog.AttrChangedAt,
	})
	values = rapid.Custom(func(t *rapid.T) catalog.Value {
		switch rapid.IntRange(0, 6).Draw(t, "kind of value") {
		case 0:
			return catalog.Value{}
		case 1:
			return catalog.Truth(rapid.Bool().Draw(t, "truth"))
		case 2:
			return catalog.Number(rapid.SampledFrom([]int64{1, 2, 3, 80, 8080, 10000}).Draw(t, "number"))
		case 3:
			return catalog.Number(at(rapid.IntRange(0, 5).Draw(t, "moment")).UnixMicro())
		}
		return catalog.Text(texts.Draw(t, "text"))
	})
)

func at(n int) time.Time { return time.UnixMicro(1_790_000_000_000_000 + int64(n)).UTC() }

func anyTemplate(t *rapid.T, id int64) catalog.Template {
	set := map[catalog.Attribute]catalog.Value{}
	for range rapid.IntRange(0, 6).Draw(t, "values") {
		if a := searched.Draw(t, "attribute"); a != catalog.AttrID && a != catalog.AttrModule && a != catalog.AttrCreatedAt && a != catalog.AttrChangedAt {
			set[a] = values.Draw(t, "value")
		}
	}
	bound := rapid.SliceOfNDistinct(modules, 0, 3, rapid.ID).Draw(t, "modules")
	slices.Sort(bound)
	return catalog.Template{
		ID: id, Values: catalog.WithDefaults(set), Modules: bound,
		CreatedAt: at(rapid.IntRange(0, 5).Draw(t, "created")), ChangedAt: at(rapid.IntRange(0, 5).Draw(t, "changed")),
	}
}

func anySearch(t *rapid.T) catalog.Search {
	s := catalog.Search{
		Descending: rapid.Bool().Draw(t, "descending"),
		Start:      rapid.SampledFrom([]int{0, 0, 1, 5, 1000}).Draw(t, "start"),
		Limit:      rapid.SampledFrom([]int{1, 3, 1000}).Draw(t, "limit"),
	}
	if by := searched.Draw(t, "sort"); by != catalog.AttrModule {
		s.Sort = by
	}
	for range rapid.IntRange(0, 3).Draw(t, "conditions") {
		c := catalog.Condition{Attribute: searched.Draw(t, "of"), Comparison: comparisons.Draw(t, "comparison")}
		n := 1
		if c.Comparison == catalog.In || c.Comparison == catalog.NotIn {
			n = rapid.IntRange(0, 12).Draw(t, "number of values")
		}
		c.Values = rapid.SliceOfN(values, n, n).Draw(t, "values")
		s.Conditions = append(s.Conditions, c)
	}
	return s
}

func TestSearchFindsWhatAPlainSearchFinds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v, known := NewView(), map[int64]catalog.Template{}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			applySome(t, v, known)
			var all []catalog.Template
			for _, one := range known {
				all = append(all, one)
			}
			for range 3 {
				agree(t, v, all, anySearch(t))
			}
		}
	})
}

// applySome changes and removes templates, which may be known or not.
func applySome(t *rapid.T, v *View, known map[int64]catalog.Template) {
	ids := rapid.Int64Range(1, 30)
	var changed []catalog.Template
	for range rapid.IntRange(0, 10).Draw(t, "changed") {
		one := anyTemplate(t, ids.Draw(t, "id"))
		changed, known[one.ID] = append(changed, one), one
	}
	removed := rapid.SliceOfN(ids, 0, 5).Draw(t, "removed")
	for _, id := range removed {
		delete(known, id)
	}
	v.Apply(changed, removed)
	if v.Len() != len(known) {
		t.Fatalf("the view knows %d templates of %d", v.Len(), len(known))
	}
}

func agree(t *rapid.T, v *View, all []catalog.Template, s catalog.Search) {
	t.Helper()
	if err := s.Validate(); err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
	page, total := v.Search(s)
	wantPage, wantTotal := catalogtest.Find(all, s)
	if total != wantTotal || !slices.Equal(page, wantPage) {
		t.Fatalf("%+v\nof %+v\nfinds %v of %d, but it is %v of %d", s, all, page, total, wantPage, wantTotal)
	}
}

// A view drops the values that no template has anymore.
func TestAViewDoesNotGrowWithWhatIsGone(t *testing.T) {
	t.Parallel()
	v := NewView()
	v.Search(catalog.Search{Sort: catalog.AttrName, Limit: 1})
	for n := range 3000 {
		name := fmt.Sprint("name ", n)
		v.Apply([]catalog.Template{{
			ID: int64(n%10 + 1), Modules: []string{name},
			Values: catalog.WithDefaults(map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text(name)}),
		}}, []int64{int64(n%7 + 1)})
	}
	if names, of := len(v.columns[catalog.AttrName].values.values), len(v.modules.names.values); names > 1100 || of > 1100 {
		t.Errorf("10 templates keep %d names and %d modules", names, of)
	}
	page, total := v.Search(catalog.Search{Sort: catalog.AttrName, Limit: 10})
	if len(page) != total || total != v.Len() {
		t.Errorf("finds %v of %d", page, total)
	}
}

// This test is for the race detector.
func TestSearchesMeetChanges(t *testing.T) {
	t.Parallel()
	v, all := NewView(), many(500)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := range 200 {
			i := n * 7 % 400
			v.Apply(all[i:i+100], []int64{int64(n)})
		}
	}()
	for going := true; going; {
		select {
		case <-done:
			going = false
		default:
		}
		page, total := v.Search(catalog.Search{Sort: catalog.AttrName, Limit: 1000, Conditions: []catalog.Condition{
			{Attribute: catalog.AttrName, Comparison: catalog.Contains, Values: []catalog.Value{catalog.Text("web")}},
		}})
		if len(page) != total || len(slices.Compact(slices.Sorted(slices.Values(page)))) != total {
			t.Fatalf("found %d, the page has %d: %v", total, len(page), page)
		}
	}
}
