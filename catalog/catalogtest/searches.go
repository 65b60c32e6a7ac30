package catalogtest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/procfleet/procfleet/catalog"
)

func searchChecks() []Check {
	return []Check{
		{Name: "a search knows of everything that was answered before", Fn: searchKnows},
		{Name: "every comparison compares as it says", Fn: searchCompares},
		{Name: "modules are searched by each of them", Fn: searchModules},
		{Name: "what is found is sorted", Fn: searchSorts},
		{Name: "what is found is paged", Fn: searchPages},
		{Name: "a search that cannot be is refused", Fn: searchRefused},
		{Name: "many search while many edit", Fn: searchWhileEdited, Heavy: true},
	}
}

func searchKnows(ctx context.Context, t T, s Subject) {
	by := func(a catalog.Attribute, text string) []string {
		return found(ctx, t, s, condition(a, catalog.Is, catalog.Text(text)))
	}
	equal(t, "in the beginning", found(ctx, t, s), []string(nil))
	id := edit(ctx, t, s, shop, define("web", "m"))[0].ID
	equal(t, "by name", by(catalog.AttrName, "web"), []string{"web"})
	edit(ctx, t, s, shop, rename(id, "front"))
	equal(t, "by its name before", by(catalog.AttrName, "web"), []string(nil))
	equal(t, "by its new name", by(catalog.AttrName, "front"), []string{"front"})
	equal(t, "by module", by(catalog.AttrModule, "m"), []string{"front"})
	edit(ctx, t, s, shop, catalog.Edit{ID: id, Unbind: []string{"m"}})
	equal(t, "by its module before", by(catalog.AttrModule, "m"), []string(nil))
	_, err := s.DeleteTemplate(ctx, shop, id)
	must(t, err, "delete")
	equal(t, "in the end", found(ctx, t, s), []string(nil))
}

// assorted creates templates that differ in all attributes that the searches use.
func assorted(ctx context.Context, t T, s Subject) {
	t.Helper()
	var edits []catalog.Edit
	for i, set := range []values{
		{catalog.AttrPort: catalog.Number(80), catalog.AttrUser: catalog.Text("www"), catalog.AttrTimeout: catalog.Number(9)},
		{catalog.AttrPort: catalog.Text("80"), catalog.AttrUser: catalog.Text("WWW"), catalog.AttrTimeout: catalog.Number(10)},
		{catalog.AttrPort: catalog.Text("8080"), catalog.AttrUser: catalog.Text(""), catalog.AttrTimeout: catalog.Number(100)},
		{catalog.AttrPort: catalog.Text(""), catalog.AttrUser: catalog.Value{}, catalog.AttrAutoStart: catalog.Truth(true)},
		{catalog.AttrPort: catalog.Value{}, catalog.AttrUser: catalog.Text("w%w_[.*"), catalog.AttrTimeout: catalog.Value{}},
	} {
		edits = append(edits, catalog.Edit{Set: named(string(rune('a'+i)), set)})
	}
	edit(ctx, t, s, shop, edits...)
}

func searchCompares(ctx context.Context, t T, s Subject) {
	assorted(ctx, t, s)
	text, number, nothing := catalog.Text, catalog.Number, catalog.Value{}
	for _, test := range []struct {
		of   catalog.Condition
		want string
	}{
		{condition(catalog.AttrUser, catalog.Is, text("www")), "a"},
		{condition(catalog.AttrUser, catalog.Is, text("")), "c"},
		{condition(catalog.AttrUser, catalog.Is, nothing), "d"},
		{condition(catalog.AttrUser, catalog.IsNot, nothing), "abce"},
		{condition(catalog.AttrUser, catalog.In, text("www"), nothing, text("?")), "ad"},
		{condition(catalog.AttrUser, catalog.In), ""},
		{condition(catalog.AttrUser, catalog.NotIn), "abcde"},
		{condition(catalog.AttrUser, catalog.NotIn, text("www"), nothing), "bce"},
		{condition(catalog.AttrUser, catalog.Contains, text("w")), "ae"},
		{condition(catalog.AttrUser, catalog.Contains, text("")), "abce"},
		{condition(catalog.AttrUser, catalog.Contains, text("w%w_[.*")), "e"},
		{condition(catalog.AttrUser, catalog.Contains, text(".")), "e"},
		{condition(catalog.AttrUser, catalog.Contains, nothing), ""},
		{condition(catalog.AttrUser, catalog.More, text("WWW")), "ae"},
		{condition(catalog.AttrUser, catalog.AtMost, text("WWW")), "bc"},
		{condition(catalog.AttrUser, catalog.Less, number(1)), ""},
		{condition(catalog.AttrTimeout, catalog.Is, number(10)), "b"},
		{condition(catalog.AttrTimeout, catalog.Is, text("10")), ""},
		{condition(catalog.AttrTimeout, catalog.Less, number(10)), "a"},
		{condition(catalog.AttrTimeout, catalog.AtMost, number(10)), "ab"},
		{condition(catalog.AttrTimeout, catalog.More, number(10)), "c"},
		{condition(catalog.AttrTimeout, catalog.AtLeast, number(10)), "bc"},
		{condition(catalog.AttrTimeout, catalog.Contains, text("1")), ""},
		{condition(catalog.AttrTimeout, catalog.AtLeast, nothing), "de"},
		{condition(catalog.AttrAutoStart, catalog.Is, catalog.Truth(true)), "d"},
		{condition(catalog.AttrAutoStart, catalog.IsNot, catalog.Truth(true)), "abce"},
		{condition(catalog.AttrAutoStart, catalog.More, catalog.Truth(false)), "d"},
		{condition(catalog.AttrPort, catalog.Is, text("80")), "ab"},
		{condition(catalog.AttrPort, catalog.Is, number(80)), "ab"},
		{condition(catalog.AttrPort, catalog.NotIn, number(80), text("")), "ce"},
		{condition(catalog.AttrPort, catalog.Contains, text("80")), "abc"},
		{condition(catalog.AttrPort, catalog.Contains, number(80)), "abc"},
		{condition(catalog.AttrID, catalog.AtLeast, text("")), ""},
		{condition(catalog.AttrID, catalog.More, number(0)), "abcde"},
		{condition(catalog.AttrCreatedAt, catalog.Less, number(1)), ""},
		{condition(catalog.AttrChangedAt, catalog.AtLeast, number(1)), "abcde"},
	} {
		equal(t, fmt.Sprintf("found by %v", test.of), strings.Join(found(ctx, t, s, test.of), ""), test.want)
	}
	equal(t, "found by several conditions", found(ctx, t, s,
		condition(catalog.AttrPort, catalog.Contains, text("8")), condition(catalog.AttrTimeout, catalog.AtLeast, number(10)), condition(catalog.AttrUser, catalog.IsNot, text(""))),
		[]string{"b"})
	page, _ := search(ctx, t, s, shop, catalog.Search{Limit: 5, Conditions: []catalog.Condition{condition(catalog.AttrName, catalog.In, text("b"), text("e"))}})
	ids := []catalog.Value{number(page[1].ID), number(page[0].ID), text(fmt.Sprint(page[0].ID - 1))}
	equal(t, "found by id", found(ctx, t, s, condition(catalog.AttrID, catalog.In, ids...)), []string{"b", "e"})
	moment := number(page[0].CreatedAt.UnixMicro())
	equal(t, "found by moment", found(ctx, t, s, condition(catalog.AttrCreatedAt, catalog.Is, moment)), []string{"a", "b", "c", "d", "e"})
}

func searchModules(ctx context.Context, t T, s Subject) {
	edit(ctx, t, s, shop, define("none"), define("one", "web"), define("two", "db", "web"), define("other", "Web", "we"))
	text := catalog.Text
	for _, test := range []struct {
		of   catalog.Condition
		want []string
	}{
		{condition(catalog.AttrModule, catalog.Is, text("web")), []string{"one", "two"}},
		{condition(catalog.AttrModule, catalog.IsNot, text("web")), []string{"none", "other"}},
		{condition(catalog.AttrModule, catalog.In, text("db"), text("we"), text("x")), []string{"two", "other"}},
		{condition(catalog.AttrModule, catalog.NotIn, text("db"), text("we")), []string{"none", "one"}},
		{condition(catalog.AttrModule, catalog.Contains, text("eb")), []string{"one", "two", "other"}},
		{condition(catalog.AttrModule, catalog.Less, text("web")), []string{"two", "other"}},
		{condition(catalog.AttrModule, catalog.Is, catalog.Value{}), nil},
		{condition(catalog.AttrModule, catalog.NotIn), []string{"none", "one", "two", "other"}},
	} {
		equal(t, fmt.Sprintf("found by %v", test.of), found(ctx, t, s, test.of), test.want)
	}
}

func searchSorts(ctx context.Context, t T, s Subject) {
	assorted(ctx, t, s)
	for _, test := range []struct {
		by       catalog.Attribute
		up, down string
	}{
		{"", "abcde", "abcde"},
		{catalog.AttrID, "abcde", "edcba"},
		{catalog.AttrName, "abcde", "edcba"},
		{catalog.AttrUser, "dcbea", "aebcd"},
		{catalog.AttrTimeout, "deabc", "cbade"},
		{catalog.AttrPort, "edabc", "cabde"},
		{catalog.AttrAutoStart, "abced", "dabce"},
		{catalog.AttrProtocol, "abcde", "abcde"},
		{catalog.AttrCreatedAt, "abcde", "abcde"},
	} {
		page, _ := search(ctx, t, s, shop, catalog.Search{Limit: 10, Sort: test.by})
		equal(t, fmt.Sprintf("sorted by %q", test.by), strings.Join(namesOf(page), ""), test.up)
		page, _ = search(ctx, t, s, shop, catalog.Search{Limit: 10, Sort: test.by, Descending: true})
		equal(t, fmt.Sprintf("sorted by %q, descending", test.by), strings.Join(namesOf(page), ""), test.down)
	}
	pass(ctx, t, s)
	page, _ := search(ctx, t, s, shop, catalog.Search{Limit: 2})
	edit(ctx, t, s, shop, catalog.Edit{ID: page[1].ID, Set: values{catalog.AttrDescription: catalog.Text("changed")}})
	page, _ = search(ctx, t, s, shop, catalog.Search{Limit: 2, Sort: catalog.AttrChangedAt, Descending: true})
	equal(t, "changed last", strings.Join(namesOf(page), ""), "ba")
}

func searchPages(ctx context.Context, t T, s Subject) {
	var edits []catalog.Edit
	var want []string
	for i := range 47 {
		want = append(want, fmt.Sprintf("web %02d", i))
		edits = append(edits, define(want[i]), define(fmt.Sprint("db ", i)))
	}
	slices.Reverse(edits)
	edit(ctx, t, s, shop, edits...)
	web := []catalog.Condition{condition(catalog.AttrName, catalog.Contains, catalog.Text("web"))}
	for _, limit := range []int{1, 7, 47, catalog.MaxTemplatePage} {
		var got []string
		for len(got) < len(want) {
			page, total := search(ctx, t, s, shop, catalog.Search{Conditions: web, Sort: catalog.AttrName, Start: len(got), Limit: limit})
			equal(t, "number of all", total, len(want))
			got = append(got, namesOf(page)...)
		}
		equal(t, fmt.Sprintf("pages of %d", limit), got, want)
	}
	all, err := s.FindTemplates(ctx, shop, catalog.Search{Conditions: web, Sort: catalog.AttrName, Descending: true, Limit: 3})
	must(t, err, "find templates")
	rows, err := s.Templates(ctx, shop, all)
	must(t, err, "read templates")
	var names []string
	for _, row := range slices.Backward(rows) {
		names = append(names, row.Name())
	}
	equal(t, "all that is found, whatever the limit", names, want)
	rest, err := s.FindTemplates(ctx, shop, catalog.Search{Conditions: web, Sort: catalog.AttrName, Descending: true, Start: 40})
	must(t, err, "find templates")
	equal(t, "all after the first 40", rest, all[40:])
	for _, start := range []int{47, 48, 1 << 40} {
		after, err := s.FindTemplates(ctx, shop, catalog.Search{Conditions: web, Start: start})
		must(t, err, "find templates")
		equal(t, "ids after the end", len(after), 0)
		page, total := search(ctx, t, s, shop, catalog.Search{Conditions: web, Start: start, Limit: 10})
		equal(t, "after the end", []int{len(page), total}, []int{0, 47})
	}
}

func searchRefused(ctx context.Context, t T, s Subject) {
	defined(ctx, t, s, "web")
	const limitNothing, limitTooMuch = "for nothing", "for too much"
	good := catalog.Search{Limit: 10}
	for what, change := range map[string]func(q *catalog.Search){
		limitNothing:              func(q *catalog.Search) { q.Limit = 0 },
		limitTooMuch:              func(q *catalog.Search) { q.Limit = catalog.MaxTemplatePage + 1 },
		"from before the start":   func(q *catalog.Search) { q.Start = -1 },
		"sorted by nothing known": func(q *catalog.Search) { q.Sort = "colour" },
		"sorted by modules":       func(q *catalog.Search) { q.Sort = catalog.AttrModule },
		"by nothing known": func(q *catalog.Search) {
			q.Conditions = []catalog.Condition{condition("colour", catalog.Is, catalog.Text(""))}
		},
		"by no comparison": func(q *catalog.Search) {
			q.Conditions = []catalog.Condition{condition(catalog.AttrName, "", catalog.Text(""))}
		},
		"by no value": func(q *catalog.Search) { q.Conditions = []catalog.Condition{condition(catalog.AttrName, catalog.Is)} },
	} {
		q := good
		change(&q)
		if _, _, err := s.SearchTemplates(ctx, shop, q); !isFieldError(err) {
			t.Errorf("a search %s: %v", what, err)
		}
		if _, err := s.FindTemplates(ctx, shop, q); what != limitNothing && what != limitTooMuch && !isFieldError(err) {
			t.Errorf("ids of a search %s: %v", what, err)
		}
	}
	page, total := search(ctx, t, s, catalog.Business{}, good)
	equal(t, "found in no business", []int{len(page), total}, []int{0, 0})
}

// searchWhileEdited edits templates concurrently. Each writer searches for the template
// that it has just written.
func searchWhileEdited(ctx context.Context, t T, s Subject) {
	const steps = 10
	together(8, func(i int) {
		is := func(text string) catalog.Search {
			return catalog.Search{Limit: 5, Conditions: []catalog.Condition{condition(catalog.AttrName, catalog.Is, catalog.Text(text))}}
		}
		id := int64(0)
		for n := range steps {
			name := fmt.Sprint("of ", i, " ", n)
			done, err := s.EditTemplates(ctx, shop, []catalog.Edit{{ID: id, Set: named(name, nil)}})
			if err != nil {
				t.Errorf("edit: %v", err)
				return
			}
			id = done[0].ID
			if page, total, err := s.SearchTemplates(ctx, shop, is(name)); err != nil || total != 1 || page[0].ID != id {
				t.Errorf("%s was written, %d are found: %v", name, total, err)
			}
			if _, total, err := s.SearchTemplates(ctx, shop, is(fmt.Sprint("of ", i, " ", n-1))); err != nil || total != 0 {
				t.Errorf("what was renamed is found %d times: %v", total, err)
			}
		}
	})
	equal(t, "number of all", len(found(ctx, t, s)), 8)
}
