package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

type values = map[catalog.Attribute]catalog.Value

var shop = catalog.Business{Account: catalog.DefaultAccount, ID: 2}

// named returns values with a name and with further values.
func named(name string, more values) values {
	set := values{catalog.AttrName: catalog.Text(name)}
	maps.Copy(set, more)
	return set
}

// define returns an edit that creates a template bound to modules.
func define(name string, modules ...string) catalog.Edit {
	return catalog.Edit{Set: named(name, nil), Bind: modules}
}

func rename(id int64, name string) catalog.Edit {
	return catalog.Edit{ID: id, Set: named(name, nil)}
}

func edit(ctx context.Context, t T, s catalog.Store, b catalog.Business, edits ...catalog.Edit) []catalog.Edited {
	t.Helper()
	done, err := s.EditTemplates(ctx, b, edits)
	must(t, err, "edit templates")
	if len(done) != len(edits) {
		t.Fatalf("%d edits have %d answers", len(edits), len(done))
	}
	for i, e := range edits {
		if e.ID != 0 && done[i].ID != e.ID || done[i].ID < 1 {
			t.Fatalf("edit %d of %d is of %d", i, e.ID, done[i].ID)
		}
	}
	return done
}

// defined creates templates in business shop in one call, and returns their ids.
func defined(ctx context.Context, t T, s catalog.Store, names ...string) []int64 {
	t.Helper()
	var edits []catalog.Edit
	for _, name := range names {
		edits = append(edits, define(name))
	}
	return idsOf(edit(ctx, t, s, shop, edits...))
}

func idsOf(done []catalog.Edited) []int64 {
	ids := make([]int64, len(done))
	for i := range done {
		ids[i] = done[i].ID
	}
	return ids
}

// refused makes edits that the store must reject, and returns the error.
func refused(ctx context.Context, t T, s catalog.Store, b catalog.Business, what string, edits ...catalog.Edit) error {
	t.Helper()
	done, err := s.EditTemplates(ctx, b, edits)
	if err == nil {
		t.Fatalf("%s was done: %+v", what, done)
	}
	return err
}

// refusedEdit makes edits that the store must reject because of one edit, and returns
// the cause, which must have type E.
func refusedEdit[E error](ctx context.Context, t T, s catalog.Store, what string, index int, edits ...catalog.Edit) E {
	t.Helper()
	err := refused(ctx, t, s, shop, what, edits...)
	isOfEdit(t, what, err, index, edits[index].ID)
	why, ok := errors.AsType[E](err)
	if !ok {
		t.Fatalf("%s: %v, which is no %T", what, err, why)
	}
	return why
}

// isOfEdit checks which edit an EditError names.
func isOfEdit(t T, what string, err error, index int, id int64) {
	t.Helper()
	if of, _ := errors.AsType[*catalog.EditError](err); of == nil || of.Index != index || of.ID != id {
		t.Errorf("%s: %v, not because of edit %d", what, err, index)
	}
}

func templates(ctx context.Context, t T, s catalog.Store, b catalog.Business, ids ...int64) []*catalog.Template {
	t.Helper()
	ts, err := s.Templates(ctx, b, ids)
	must(t, err, "templates")
	if len(ts) != len(ids) {
		t.Fatalf("%d templates of %d ids", len(ts), len(ids))
	}
	for i, id := range ids {
		if one := ts[i]; one != nil && one.ID != id {
			t.Fatalf("template %d is %d", id, one.ID)
		}
	}
	return ts
}

// template returns a template, which must exist.
func template(ctx context.Context, t T, s catalog.Store, b catalog.Business, id int64) catalog.Template {
	t.Helper()
	one := templates(ctx, t, s, b, id)[0]
	if one == nil {
		t.Fatalf("there is no template %d", id)
	}
	return *one
}

// outline returns a short text for each template; "-" for nil.
func outline(ts ...*catalog.Template) []string {
	out := make([]string, len(ts))
	for i, one := range ts {
		out[i] = "-"
		if one != nil {
			out[i] = strings.Join(append([]string{one.Name()}, one.Modules...), " ")
		}
	}
	return out
}

func search(ctx context.Context, t T, s catalog.Store, b catalog.Business, q catalog.Search) ([]catalog.Template, int) {
	t.Helper()
	page, total, err := s.SearchTemplates(ctx, b, q)
	must(t, err, "search templates")
	if len(page) != max(0, min(q.Limit, total-q.Start)) {
		t.Fatalf("a page of at most %d after %d of %d has %d templates", q.Limit, q.Start, total, len(page))
	}
	return page, total
}

// found returns the names of all templates of shop that meet the conditions, in the
// order of creation.
func found(ctx context.Context, t T, s catalog.Store, conditions ...catalog.Condition) []string {
	t.Helper()
	page, _ := search(ctx, t, s, shop, catalog.Search{Limit: catalog.MaxTemplatePage, Conditions: conditions})
	return namesOf(page)
}

func namesOf(page []catalog.Template) []string {
	names := make([]string, len(page))
	for i := range page {
		names[i] = page[i].Name()
	}
	return names
}

func condition(a catalog.Attribute, c catalog.Comparison, vs ...catalog.Value) catalog.Condition {
	return catalog.Condition{Attribute: a, Comparison: c, Values: vs}
}

// wholeValues returns a value for every attribute.
func wholeValues() values {
	return values{
		catalog.AttrName: catalog.Text("web \"1\" <a&b> {x} 进程\n"), catalog.AttrDescription: catalog.Text("é\u2028\x01\\"),
		catalog.AttrBindIP: catalog.Text("2"), catalog.AttrPort: catalog.Number(80), catalog.AttrProtocol: catalog.Text(""),
		catalog.AttrFuncID: catalog.Text("null"), catalog.AttrFuncName: catalog.Text("nginx: worker"), catalog.AttrWorkPath: catalog.Text(`C:\data`),
		catalog.AttrUser: catalog.Value{}, catalog.AttrInstances: catalog.Number(1), catalog.AttrPriority: catalog.Number(catalog.MostNumber),
		catalog.AttrTimeout: catalog.Value{}, catalog.AttrStart: catalog.Text(strings.Repeat("进", catalog.MaxLongText/3)),
		catalog.AttrStop: catalog.Text("a | b\t'c'"), catalog.AttrRestart: catalog.Text("0"), catalog.AttrKill: catalog.Text("-9"),
		catalog.AttrReload: catalog.Text("true"), catalog.AttrPidFile: catalog.Text("/run/nginx.pid"), catalog.AttrAutoStart: catalog.Truth(true),
		catalog.AttrAutoStartGap: catalog.Number(7), catalog.AttrArgsPattern: catalog.Text("-c .*"),
	}
}

// place returns a topology. Each argument is the name of a set, followed by its modules
// with their numbers of hosts: "s1", "web 2", "db 0".
func place(sets ...[]string) catalog.Topology {
	t := catalog.Topology{Version: -1}
	for _, of := range sets {
		set := catalog.Set{Name: of[0]}
		for _, text := range of[1:] {
			var m catalog.Module
			n := 0
			_, _ = fmt.Sscan(text, &m.Name, &n)
			m.Hosts = hosts(n)
			set.Modules = append(set.Modules, m)
		}
		t.Sets = append(t.Sets, set)
	}
	return t
}

func setTopology(ctx context.Context, t T, s catalog.Store, b catalog.Business, topology catalog.Topology) int64 {
	t.Helper()
	version, err := s.SetTopology(ctx, b, topology)
	must(t, err, "set topology")
	return version
}

func topology(ctx context.Context, t T, s catalog.Store, b catalog.Business) catalog.Topology {
	t.Helper()
	got, err := s.Topology(ctx, b)
	must(t, err, "topology")
	if got == nil {
		t.Fatalf("no topology at all was answered")
	}
	return *got
}

// isFieldError reports whether err is or contains a FieldError.
func isFieldError(err error) bool {
	_, ok := errors.AsType[*procfleet.FieldError](err)
	return ok
}
