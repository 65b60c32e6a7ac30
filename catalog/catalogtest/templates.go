package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet/catalog"
)

func templateChecks() []Check {
	return []Check{
		{Name: "a template is kept whole", Fn: templateWhole},
		{Name: "what a template does not say has its default", Fn: templateDefaults},
		{Name: "an edit sets what it says and leaves the rest", Fn: templateEdited},
		{Name: "templates are answered in order", Fn: templatesInOrder},
		{Name: "names of templates are unique in a business", Fn: namesUnique},
		{Name: "function ids, and patterns with programs, are unique where there are any", Fn: othersUnique},
		{Name: "what is unique is so after all edits of a call", Fn: uniqueAfterAll},
		{Name: "all edits of a call are done, or none", Fn: allOrNone},
		{Name: "edits that cannot be are refused", Fn: editsRefused},
		{Name: "ids of templates are never given twice", Fn: idsOnce},
		{Name: "businesses and accounts have their own templates", Fn: templatesApart},
		{Name: "one of many definers of a name is first", Fn: oneDefines},
		{Name: "simultaneous edits of the same templates are done one after the other", Fn: editsTogether, Heavy: true},
		{Name: "simultaneous bindings of one template all count", Fn: bindTogether, Heavy: true},
		{Name: "one call defines 1,000 templates", Fn: defineMany, Heavy: true},
	}
}

func bindingChecks() []Check {
	return []Check{
		{Name: "to bind says what is newly bound", Fn: boundNewly},
		{Name: "a bound template is not deleted", Fn: boundNotDeleted},
		{Name: "of many that delete or bind a template the first has it", Fn: deleteTogether, Heavy: true},
	}
}

func templateWhole(ctx context.Context, t T, s Subject) {
	before, err := s.Now(ctx)
	must(t, err, "now")
	id := edit(ctx, t, s, shop, catalog.Edit{Set: wholeValues(), Bind: []string{"web", "数据库", "Web", "a b\x01{c}"}})[0].ID
	after, err := s.Now(ctx)
	must(t, err, "now")
	got := template(ctx, t, s, shop, id)
	equal(t, "values", got.Values, wholeValues())
	equal(t, "modules", got.Modules, []string{"Web", "a b\x01{c}", "web", "数据库"})
	equal(t, "moment of the change", got.ChangedAt, got.CreatedAt)
	if at := got.CreatedAt; at.Location() != time.UTC || at.Before(before.Truncate(time.Millisecond)) || at.After(after) {
		t.Errorf("made between %v and %v, it says %v", before, after, at)
	}
	page, total := search(ctx, t, s, shop, catalog.Search{Limit: 1})
	equal(t, "found", total, 1)
	equal(t, "template as it is found", page, []catalog.Template{got})
}

func templateDefaults(ctx context.Context, t T, s Subject) {
	id := defined(ctx, t, s, "web")[0]
	got := template(ctx, t, s, shop, id)
	equal(t, "values", got.Values, catalog.WithDefaults(named("web", nil)))
	equal(t, "modules", got.Modules, []string(nil))
	if len(got.Values) != len(catalog.AttributeRules()) {
		t.Errorf("there are %d values of %d attributes", len(got.Values), len(catalog.AttributeRules()))
	}
}

func templateEdited(ctx context.Context, t T, s Subject) {
	id := edit(ctx, t, s, shop, catalog.Edit{Set: wholeValues(), Bind: []string{"web"}})[0].ID
	was := template(ctx, t, s, shop, id)
	pass(ctx, t, s)
	set := values{catalog.AttrUser: catalog.Text("www"), catalog.AttrInstances: catalog.Value{}, catalog.AttrPort: catalog.Text("8080-8089,8199")}
	edit(ctx, t, s, shop, catalog.Edit{ID: id, Set: set})
	got, want := template(ctx, t, s, shop, id), maps.Clone(was.Values)
	maps.Copy(want, set)
	equal(t, "values", got.Values, want)
	equal(t, "modules", got.Modules, was.Modules)
	equal(t, "moment when it was made", got.CreatedAt, was.CreatedAt)
	if !got.ChangedAt.After(was.ChangedAt) {
		t.Errorf("changed later, it says %v, not after %v", got.ChangedAt, was.ChangedAt)
	}
	pass(ctx, t, s)
	edit(ctx, t, s, shop, catalog.Edit{ID: id, Bind: []string{"db"}}, define("other"))
	bound := template(ctx, t, s, shop, id)
	equal(t, "values after it was bound", bound.Values, want)
	equal(t, "moment of the change", bound.ChangedAt, got.ChangedAt)
}

func templatesInOrder(ctx context.Context, t T, s Subject) {
	ids := defined(ctx, t, s, "a", "b", "c")
	got := templates(ctx, t, s, shop, ids[2], ids[0], ids[2]+1, ids[1], ids[2], 0, -1)
	equal(t, "templates", outline(got...), []string{"c", "a", "-", "b", "c", "-", "-"})
}

// isDuplicate checks which template and which attributes a DuplicateError names.
func isDuplicate(t T, what string, got *catalog.DuplicateError, of int64, attributes ...catalog.Attribute) {
	t.Helper()
	equal(t, what, got, &catalog.DuplicateError{Attributes: attributes, Of: of})
}

func namesUnique(ctx context.Context, t T, s Subject) {
	ids := defined(ctx, t, s, "web", "db")
	isDuplicate(t, "a name that is there", refusedEdit[*catalog.DuplicateError](ctx, t, s, "a second web", 0, define("web")), ids[0], catalog.AttrName)
	isDuplicate(t, "a name to take", refusedEdit[*catalog.DuplicateError](ctx, t, s, "to rename to web", 0, rename(ids[1], "web")), ids[0], catalog.AttrName)
	more := defined(ctx, t, s, "Web", "web ", "we", "\u00e9", "e\u0301")
	// A template may be renamed to its own name, and a name that was given up is free.
	edit(ctx, t, s, shop, rename(ids[0], "web"))
	edit(ctx, t, s, shop, rename(ids[0], "front"))
	edit(ctx, t, s, shop, rename(ids[1], "web"))
	existed, err := s.DeleteTemplate(ctx, shop, ids[1])
	must(t, err, "delete")
	equal(t, "existed", existed, true)
	again := defined(ctx, t, s, "web")
	got := templates(ctx, t, s, shop, slices.Concat(ids, more, again)...)
	equal(t, "templates", outline(got...), []string{"front", "-", "Web", "web ", "we", "\u00e9", "e\u0301", "web"})
}

func othersUnique(ctx context.Context, t T, s Subject) {
	one := func(name, id, pattern, program string) catalog.Edit {
		return catalog.Edit{Set: named(name, values{
			catalog.AttrFuncID: catalog.Text(id), catalog.AttrArgsPattern: catalog.Text(pattern), catalog.AttrFuncName: catalog.Text(program),
		})}
	}
	a := edit(ctx, t, s, shop, one("a", "7", "-c a", "nginx"))[0].ID
	isDuplicate(t, "a function id", refusedEdit[*catalog.DuplicateError](ctx, t, s, "id 7 again", 0, one("b", "7", "", "nginx")), a, catalog.AttrFuncID)
	isDuplicate(t, "a pattern and program", refusedEdit[*catalog.DuplicateError](ctx, t, s, "-c a again", 0, one("b", "8", "-c a", "nginx")),
		a, catalog.AttrArgsPattern, catalog.AttrFuncName)
	// Empty attributes, and incomplete sets of attributes, are not checked for
	// uniqueness.
	b := edit(ctx, t, s, shop, one("b", "", "", "nginx"), one("c", "", "", "nginx"), one("d", "9", "-c a", "java"), one("e", "", "-c b", "nginx"))[0].ID
	set := values{catalog.AttrArgsPattern: catalog.Text("-c a")}
	isDuplicate(t, "a pattern to take", refusedEdit[*catalog.DuplicateError](ctx, t, s, "to take -c a", 0, catalog.Edit{ID: b, Set: set}),
		a, catalog.AttrArgsPattern, catalog.AttrFuncName)
	edit(ctx, t, s, shop, catalog.Edit{ID: a, Set: values{catalog.AttrFuncName: {}, catalog.AttrFuncID: {}}})
	edit(ctx, t, s, shop, catalog.Edit{ID: b, Set: set}, one("f", "7", "", "nginx"))
}

func uniqueAfterAll(ctx context.Context, t T, s Subject) {
	ids := defined(ctx, t, s, "a", "b", "c")
	edit(ctx, t, s, shop, rename(ids[0], "b"), rename(ids[1], "a"))
	edit(ctx, t, s, shop, define("c"), rename(ids[2], "d"))
	equal(t, "templates", outline(templates(ctx, t, s, shop, ids...)...), []string{"b", "a", "d"})
	equal(t, "found", len(found(ctx, t, s, condition(catalog.AttrName, catalog.Is, catalog.Text("c")))), 1)

	for what, edits := range map[string][]catalog.Edit{
		"two new templates of one name":     {define("x"), define("x")},
		"two templates to get one name":     {rename(ids[0], "x"), rename(ids[1], "x")},
		"a new template and another's name": {rename(ids[0], "x"), define("x")},
	} {
		err := refused(ctx, t, s, shop, what, edits...)
		if duplicate, _ := errors.AsType[*catalog.DuplicateError](err); duplicate == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	equal(t, "templates", outline(templates(ctx, t, s, shop, ids...)...), []string{"b", "a", "d"})
	edit(ctx, t, s, shop, define("x"))
	// After the exchange, each name belongs to its new template.
	isDuplicate(t, "a", refusedEdit[*catalog.DuplicateError](ctx, t, s, "a second a", 0, define("a")), ids[1], catalog.AttrName)
	isDuplicate(t, "b", refusedEdit[*catalog.DuplicateError](ctx, t, s, "a second b", 0, define("b")), ids[0], catalog.AttrName)
}

func allOrNone(ctx context.Context, t T, s Subject) {
	ids := defined(ctx, t, s, "a", "b", "c")
	want := templates(ctx, t, s, shop, ids...)
	good := []catalog.Edit{
		rename(ids[0], "x"), {ID: ids[1], Bind: []string{"web"}, Set: values{catalog.AttrFuncID: catalog.Text("7")}}, define("new", "web"),
	}
	bad := map[string]catalog.Edit{
		"one that does not exist":   {ID: ids[2] + 1000, Set: named("y", nil)},
		"one to bind that does not": {ID: ids[2] + 1000, Bind: []string{"web"}},
		"a name that is there":      rename(ids[2], "b"),
		"a value that cannot be":    {ID: ids[2], Set: values{catalog.AttrPort: catalog.Text("http")}},
		"a new one without a name":  {Set: values{}},
	}
	for what, e := range bad {
		for at := range len(good) + 1 {
			isOfEdit(t, what, refused(ctx, t, s, shop, what, slices.Insert(slices.Clone(good), at, e)...), at, e.ID)
		}
	}
	if err := refused(ctx, t, s, shop, "to edit nothing", bad["one that does not exist"]); !errors.Is(err, catalog.ErrNoTemplate) {
		t.Errorf("edit of a template that does not exist: %v", err)
	}
	equal(t, "templates", templates(ctx, t, s, shop, ids...), want)
	equal(t, "found", found(ctx, t, s), []string{"a", "b", "c"})
	equal(t, "found in the module", found(ctx, t, s, condition(catalog.AttrModule, catalog.Is, catalog.Text("web"))), []string(nil))
	edit(ctx, t, s, shop, good...) // the rejected edits must not have reserved anything
	equal(t, "templates", outline(templates(ctx, t, s, shop, ids...)...), []string{"x", "b web", "c"})
}

func editsRefused(ctx context.Context, t T, s Subject) {
	id := defined(ctx, t, s, "web")[0]
	bad := values{
		catalog.AttrName: catalog.Text(""), catalog.AttrPort: catalog.Text("0"), catalog.AttrInstances: catalog.Number(0), catalog.AttrBindIP: catalog.Text("5"),
		catalog.AttrUser: catalog.Text("\xff"), catalog.AttrWorkPath: catalog.Text(strings.Repeat("x", catalog.MaxLongText+1)), catalog.AttrID: catalog.Number(1), "x": {},
	}
	for a, v := range bad {
		for _, e := range []catalog.Edit{{ID: id, Set: values{a: v}}, {Set: named("new", values{a: v})}} {
			wrong := refusedEdit[*catalog.ValueError](ctx, t, s, "to set "+string(a), 1, define("other"), e)
			equal(t, "the attribute", wrong.Attribute, a)
		}
	}
	for what, e := range map[string]catalog.Edit{
		"a module without a name":        {ID: id, Bind: []string{"web", ""}},
		"a module of too long a name":    {ID: id, Unbind: []string{strings.Repeat("m", catalog.MaxModuleBytes+1)}},
		"to bind what it unbinds":        {ID: id, Bind: []string{"a", "b"}, Unbind: []string{"b"}},
		"to edit a template twice":       {ID: id},
		"a module that is not a text":    {ID: id, Bind: []string{"a\x00b"}},
		"a module in another's encoding": {Set: named("x", nil), Bind: []string{"\xff"}},
	} {
		edits := []catalog.Edit{e}
		if strings.HasSuffix(what, "twice") {
			edits = append(edits, e)
		}
		if err := refused(ctx, t, s, shop, what, edits...); !isFieldError(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, b := range []catalog.Business{{}, {Account: "0"}, {Account: "0", ID: -2}, {ID: 2}, {Account: strings.Repeat("a", catalog.MaxAccount+1), ID: 2}, {Account: "\xff", ID: 2}} {
		if err := refused(ctx, t, s, b, "an edit of no business", define("web")); !isFieldError(err) {
			t.Errorf("an edit of %+v: %v", b, err)
		}
		equal(t, "templates of no business", outline(templates(ctx, t, s, b, id)...), []string{"-"})
	}
	if err := refused(ctx, t, s, shop, "too many edits", make([]catalog.Edit, catalog.MaxEdits+1)...); !isFieldError(err) {
		t.Errorf("too many edits: %v", err)
	}
	equal(t, "templates", found(ctx, t, s), []string{"web"})
}

func idsOnce(ctx context.Context, t T, s Subject) {
	last := int64(0)
	mall := catalog.Business{Account: "7", ID: 3}
	for range 5 {
		for _, b := range []catalog.Business{shop, mall} {
			ids := idsOf(edit(ctx, t, s, b, define("a"), define("b")))
			if ids[0] <= last || ids[1] <= ids[0] {
				t.Errorf("after %d come the ids %v", last, ids)
			}
			last = ids[1]
			for _, id := range ids {
				_, err := s.DeleteTemplate(ctx, b, id)
				must(t, err, "delete")
			}
		}
	}
	var mu sync.Mutex
	var all []int64
	together(20, func(i int) {
		done, err := s.EditTemplates(ctx, catalog.Business{Account: "0", ID: int64(i%3 + 1)}, []catalog.Edit{define(fmt.Sprint("a", i)), define(fmt.Sprint("b", i))})
		if err != nil {
			t.Errorf("define: %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, idsOf(done)...)
	})
	slices.Sort(all)
	if distinct := slices.Compact(slices.Clone(all)); len(distinct) != 40 || distinct[0] <= last {
		t.Errorf("40 templates made at once, after %d, have the ids %v", last, all)
	}
}

func templatesApart(ctx context.Context, t T, s Subject) {
	businesses := []catalog.Business{
		{Account: "0", ID: 1},
		{Account: "0", ID: 11},
		{Account: "01", ID: 1},
		{Account: "1", ID: 1},
		{Account: "0.1", ID: 1},
		{Account: "0:1", ID: 1},
		{Account: "0/1", ID: 1},
		{Account: "{0}", ID: 1},
		{Account: "}", ID: 1},
		{Account: "账户", ID: 1},
		{Account: "a\x00", ID: 1},
		{Account: strings.Repeat("a", catalog.MaxAccount), ID: 1<<62 - 1},
	}
	ids := make([]int64, len(businesses))
	for i, b := range businesses {
		ids[i] = edit(ctx, t, s, b, catalog.Edit{Set: named("web", values{catalog.AttrUser: catalog.Text(fmt.Sprint(i))}), Bind: []string{fmt.Sprint("m", i)}})[0].ID
	}
	for i, b := range businesses {
		for j, one := range templates(ctx, t, s, b, ids...) {
			if (one != nil) != (i == j) {
				t.Errorf("business %+v and template of %+v: %+v", b, businesses[j], one)
			}
		}
		page, total := search(ctx, t, s, b, catalog.Search{Limit: 10, Conditions: []catalog.Condition{condition(catalog.AttrName, catalog.Is, catalog.Text("web"))}})
		if total != 1 || page[0].ID != ids[i] {
			t.Errorf("business %+v has %d: %+v", b, total, page)
		}
		other := ids[(i+1)%len(ids)]
		if err := refused(ctx, t, s, b, "to edit another's", rename(other, "x")); !errors.Is(err, catalog.ErrNoTemplate) {
			t.Errorf("business %+v edits another's: %v", b, err)
		}
		existed, err := s.DeleteTemplate(ctx, b, other)
		must(t, err, "delete another's")
		equal(t, "existed", existed, false)
	}
}

// definers is the number of concurrent callers that create a template of the same name.
const definers = 50

func oneDefines(ctx context.Context, t T, s Subject) {
	ids, duplicates := make([]int64, definers), make([]*catalog.DuplicateError, definers)
	together(definers, func(i int) {
		edits := []catalog.Edit{define(fmt.Sprint("mine ", i)), define("web")}
		done, err := s.EditTemplates(ctx, shop, edits)
		if err == nil {
			ids[i] = done[1].ID
			return
		}
		duplicate, ok := errors.AsType[*catalog.DuplicateError](err)
		if !ok {
			t.Errorf("the late call got: %v", err)
		}
		duplicates[i] = duplicate
	})
	first := slices.IndexFunc(ids, func(id int64) bool { return id != 0 })
	if first < 0 {
		t.Fatalf("no call was first")
	}
	for i := range ids {
		if i == first {
			continue
		}
		if ids[i] != 0 {
			t.Errorf("%d and %d were both first", first, i)
		} else if duplicates[i] != nil {
			isDuplicate(t, "the first call", duplicates[i], ids[first], catalog.AttrName)
		}
	}
	equal(t, "templates", found(ctx, t, s), []string{fmt.Sprint("mine ", first), "web"})
}

func editsTogether(ctx context.Context, t T, s Subject) {
	ids := defined(ctx, t, s, "a", "b", "c", "d", "e")
	together(20, func(i int) {
		var edits []catalog.Edit
		for n := range ids {
			e := catalog.Edit{ID: ids[(n+i)%len(ids)], Set: values{catalog.AttrUser: catalog.Text(fmt.Sprint(i))}}
			if n == i%len(ids) {
				e.Bind = []string{fmt.Sprint("m", i)}
			}
			edits = append(edits, e)
		}
		if _, err := s.EditTemplates(ctx, shop, edits); err != nil {
			t.Errorf("edit: %v", err)
		}
	})
	bound := 0
	got := templates(ctx, t, s, shop, ids...)
	for _, one := range got {
		equal(t, "the last call", one.Values[catalog.AttrUser], got[0].Values[catalog.AttrUser])
		bound += len(one.Modules)
	}
	equal(t, "number of bindings", bound, 20)
	equal(t, "found", len(found(ctx, t, s, condition(catalog.AttrUser, catalog.Is, got[0].Values[catalog.AttrUser]))), len(ids))
}

func bindTogether(ctx context.Context, t T, s Subject) {
	id := defined(ctx, t, s, "web")[0]
	var first atomic.Int64
	together(20, func(i int) {
		module := fmt.Sprintf("m%02d", i/2)
		done, err := s.EditTemplates(ctx, shop, []catalog.Edit{{ID: id, Bind: []string{module}}})
		if err != nil {
			t.Errorf("bind: %v", err)
			return
		}
		first.Add(int64(len(done[0].Bound)))
	})
	equal(t, "number of new bindings", first.Load(), int64(10))
	equal(t, "number of modules", len(template(ctx, t, s, shop, id).Modules), 10)
	equal(t, "found", found(ctx, t, s, condition(catalog.AttrModule, catalog.Is, catalog.Text("m07"))), []string{"web"})
}

func defineMany(ctx context.Context, t T, s Subject) {
	edits, want := make([]catalog.Edit, catalog.MaxEdits), make([]string, catalog.MaxEdits)
	for i := range edits {
		want[i] = fmt.Sprintf("process %04d", i)
		edits[i] = define(want[i], fmt.Sprint("m", i%10))
	}
	ids := idsOf(edit(ctx, t, s, shop, edits...))
	equal(t, "in the order of their ids", slices.IsSorted(ids), true)
	equal(t, "templates", found(ctx, t, s), want)
	last := edits[len(edits)-1]
	isDuplicate(t, "the last name", refusedEdit[*catalog.DuplicateError](ctx, t, s, "the last again", 0, last), ids[len(ids)-1], catalog.AttrName)
	for i := range edits {
		edits[i] = catalog.Edit{ID: ids[i], Unbind: []string{fmt.Sprint("m", i%10)}, Bind: []string{"all"}}
	}
	edit(ctx, t, s, shop, edits...)
	equal(t, "found in the module", found(ctx, t, s, condition(catalog.AttrModule, catalog.Is, catalog.Text("all"))), want)
	equal(t, "found in another", found(ctx, t, s, condition(catalog.AttrModule, catalog.Is, catalog.Text("m3"))), []string(nil))
	equal(t, "templates", len(templates(ctx, t, s, shop, ids...)), len(ids))
}

func boundNewly(ctx context.Context, t T, s Subject) {
	done := edit(ctx, t, s, shop, define("web", "b", "a", "b"))[0]
	id := done.ID
	equal(t, "bound as it was made", done, catalog.Edited{ID: id, Bound: []string{"a", "b"}})
	for _, step := range []struct {
		edit catalog.Edit
		want catalog.Edited
		now  []string
	}{
		{catalog.Edit{Bind: []string{"b", "a"}}, catalog.Edited{}, []string{"a", "b"}},
		{catalog.Edit{Bind: []string{"z", "b", "c"}}, catalog.Edited{Bound: []string{"c", "z"}}, []string{"a", "b", "c", "z"}},
		{catalog.Edit{Unbind: []string{"x", "z", "a", "z"}}, catalog.Edited{Unbound: []string{"a", "z"}}, []string{"b", "c"}},
		{catalog.Edit{Unbind: []string{"z", "a"}}, catalog.Edited{}, []string{"b", "c"}},
		{catalog.Edit{Bind: []string{"A"}, Unbind: []string{"b", "B"}}, catalog.Edited{Bound: []string{"A"}, Unbound: []string{"b"}}, []string{"A", "c"}},
		{catalog.Edit{Set: values{catalog.AttrUser: catalog.Text("www")}}, catalog.Edited{}, []string{"A", "c"}},
		{catalog.Edit{Unbind: []string{"A", "c"}}, catalog.Edited{Unbound: []string{"A", "c"}}, nil},
	} {
		step.edit.ID, step.want.ID = id, id
		equal(t, fmt.Sprintf("done by %+v", step.edit), edit(ctx, t, s, shop, step.edit)[0], step.want)
		equal(t, fmt.Sprintf("modules after %+v", step.edit), template(ctx, t, s, shop, id).Modules, step.now)
	}
}

func boundNotDeleted(ctx context.Context, t T, s Subject) {
	id := edit(ctx, t, s, shop, define("web", "a"))[0].ID
	remove := func(want bool) {
		t.Helper()
		existed, err := s.DeleteTemplate(ctx, shop, id)
		must(t, err, "delete")
		equal(t, "existed", existed, want)
	}
	refuse := func() {
		t.Helper()
		if _, err := s.DeleteTemplate(ctx, shop, id); !errors.Is(err, catalog.ErrBound) {
			t.Errorf("delete of what is bound: %v", err)
		}
		equal(t, "templates", found(ctx, t, s), []string{"web"})
	}
	refuse()
	edit(ctx, t, s, shop, catalog.Edit{ID: id, Bind: []string{"b"}, Unbind: []string{"a"}})
	refuse()
	edit(ctx, t, s, shop, catalog.Edit{ID: id, Unbind: []string{"b"}})
	remove(true)
	remove(false)
	equal(t, "templates", outline(templates(ctx, t, s, shop, id)...), []string{"-"})
	equal(t, "found", found(ctx, t, s), []string(nil))
	if err := refused(ctx, t, s, shop, "to bind what is deleted", catalog.Edit{ID: id, Bind: []string{"a"}}); !errors.Is(err, catalog.ErrNoTemplate) {
		t.Errorf("bind of what is deleted: %v", err)
	}
}

func deleteTogether(ctx context.Context, t T, s Subject) {
	for round := range 5 {
		id := defined(ctx, t, s, fmt.Sprint("web ", round))[0]
		var deleted, bound atomic.Int64
		together(12, func(i int) {
			if i%4 > 0 {
				existed, err := s.DeleteTemplate(ctx, shop, id)
				if err == nil && existed {
					deleted.Add(1)
				}
				if err != nil && !errors.Is(err, catalog.ErrBound) {
					t.Errorf("delete: %v", err)
				}
				return
			}
			_, err := s.EditTemplates(ctx, shop, []catalog.Edit{{ID: id, Bind: []string{"m"}}})
			if err == nil {
				bound.Add(1)
			} else if !errors.Is(err, catalog.ErrNoTemplate) {
				t.Errorf("bind: %v", err)
			}
		})
		there := templates(ctx, t, s, shop, id)[0] != nil
		if deleted.Load() > 1 || (deleted.Load() == 1) == there || (bound.Load() > 0) != there {
			t.Errorf("deleted %d times and bound %d times, it is there: %v", deleted.Load(), bound.Load(), there)
		}
	}
}
