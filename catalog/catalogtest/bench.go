package catalogtest

import (
	"context"
	"fmt"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

const (
	benchTemplates = 100_000 // in one business
	benchHosts     = 100_000 // in the modules of one business
	benchPage      = 200
)

var benchBusiness = catalog.Business{Account: catalog.DefaultAccount, ID: 2}

// RunBenchmarks measures a store with a large business: 100,000 templates, and 100,000
// hosts in 1,000 modules.
func RunBenchmarks(b *testing.B, h Harness) {
	b.Helper()
	s := h.Subject(b)
	ids := benchMake(b, s)
	_, err := s.SetTopology(b.Context(), benchBusiness, benchTopology())
	must(b, err, "set topology")
	for _, bench := range []struct {
		name string
		fn   func(ctx context.Context, b *testing.B, s catalog.Store)
	}{
		{"search by part of the name", benchSearch(catalog.AttrName, catalog.Contains, catalog.Text("777-web"))},
		{"search by part of the name, sorted", benchSorted},
		{"search by module", benchSearch(catalog.AttrModule, catalog.Is, catalog.Text("module-123"))},
		{"search by port", benchSearch(catalog.AttrPort, catalog.Is, catalog.Text("8123"))},
		{"search by name", benchSearch(catalog.AttrName, catalog.Is, benchTemplate(77_777).Set[catalog.AttrName])},
		{"edit 1", benchEdit(ids[:1])},
		{"edit 500", benchEdit(ids[:500])},
		{"page of 200 by id", benchTemplatesByID(ids[:benchPage])},
		{"set topology", benchSetTopology},
		{"set hosts of a module", benchSetModuleHosts},
		{"topology", benchReadTopology},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			bench.fn(b.Context(), b, s.Store)
		})
	}
	if s.Reopen == nil {
		return
	}
	b.Run("first search after opening", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s.Store = s.Reopen()
			b.StartTimer()
			benchFind(b.Context(), b, s, benchCondition(catalog.AttrPort, catalog.Is, catalog.Text("8123")))
		}
	})
	b.Run("first topology after opening", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s.Store = s.Reopen()
			b.StartTimer()
			benchSeeTopology(b.Context(), b, s)
		}
	})
}

// benchMake creates the templates. Their names, paths and commands differ; their
// programs, ports and modules repeat.
func benchMake(b *testing.B, s catalog.Store) []int64 {
	b.Helper()
	var ids []int64
	for len(ids) < benchTemplates {
		edits := make([]catalog.Edit, catalog.MaxEdits)
		for i := range edits {
			edits[i] = benchTemplate(len(ids) + i)
		}
		done, err := s.EditTemplates(b.Context(), benchBusiness, edits)
		must(b, err, "make templates")
		for _, d := range done {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

func benchTemplate(i int) catalog.Edit {
	name := fmt.Sprintf("service-%06d-%s", i*7919%benchTemplates, []string{"web", "db", "cache"}[i%3])
	return catalog.Edit{
		Bind: []string{fmt.Sprintf("module-%03d", i%500), fmt.Sprintf("module-%03d", (i+1)%500)},
		Set: map[catalog.Attribute]catalog.Value{
			catalog.AttrName: catalog.Text(name), catalog.AttrFuncName: catalog.Text([]string{"nginx", "mysqld", "redis-server"}[i%3]),
			catalog.AttrPort: catalog.Text(fmt.Sprint(8000 + i%1000)), catalog.AttrUser: catalog.Text("www"),
			catalog.AttrWorkPath: catalog.Text("/data/" + name), catalog.AttrStart: catalog.Text("./bin/start.sh --name " + name),
			catalog.AttrStop: catalog.Text("./bin/stop.sh"), catalog.AttrTimeout: catalog.Number(int64(i%60 + 1)),
		},
	}
}

func benchCondition(a catalog.Attribute, c catalog.Comparison, v catalog.Value) catalog.Search {
	return catalog.Search{Conditions: []catalog.Condition{{Attribute: a, Comparison: c, Values: []catalog.Value{v}}}, Limit: benchPage}
}

func benchFind(ctx context.Context, b *testing.B, s catalog.Store, search catalog.Search) {
	b.Helper()
	page, total, err := s.SearchTemplates(ctx, benchBusiness, search)
	must(b, err, "search")
	if total == 0 || len(page) != min(total, benchPage) {
		b.Fatalf("%d of %d are found", len(page), total)
	}
}

func benchSearch(a catalog.Attribute, c catalog.Comparison, v catalog.Value) func(context.Context, *testing.B, catalog.Store) {
	return func(ctx context.Context, b *testing.B, s catalog.Store) {
		b.Helper()
		search := benchCondition(a, c, v)
		benchFind(ctx, b, s, search)
		for b.Loop() {
			benchFind(ctx, b, s, search)
		}
	}
}

func benchSorted(ctx context.Context, b *testing.B, s catalog.Store) {
	b.Helper()
	search := benchCondition(catalog.AttrName, catalog.Contains, catalog.Text("web"))
	search.Sort, search.Descending, search.Start = catalog.AttrName, true, 20_000
	benchFind(ctx, b, s, search)
	for b.Loop() {
		benchFind(ctx, b, s, search)
	}
}

func benchEdit(ids []int64) func(context.Context, *testing.B, catalog.Store) {
	return func(ctx context.Context, b *testing.B, s catalog.Store) {
		b.Helper()
		edits, n := make([]catalog.Edit, len(ids)), 0
		for b.Loop() {
			n++
			for i, id := range ids {
				edits[i] = catalog.Edit{ID: id, Set: map[catalog.Attribute]catalog.Value{catalog.AttrStart: catalog.Text(fmt.Sprint("start ", n))}}
			}
			_, err := s.EditTemplates(ctx, benchBusiness, edits)
			must(b, err, "edit")
		}
	}
}

func benchTemplatesByID(ids []int64) func(context.Context, *testing.B, catalog.Store) {
	return func(ctx context.Context, b *testing.B, s catalog.Store) {
		b.Helper()
		for b.Loop() {
			_, err := s.Templates(ctx, benchBusiness, ids)
			must(b, err, "templates")
		}
	}
}

func benchTopology() catalog.Topology {
	topology := catalog.Topology{Version: -1, Sets: make([]catalog.Set, 10)}
	for i := range benchHosts {
		set := &topology.Sets[i%10]
		if set.Modules == nil {
			*set = catalog.Set{Name: fmt.Sprintf("set-%d", i%10), Modules: make([]catalog.Module, 100)}
		}
		m := &set.Modules[i/10%100]
		m.Name, m.Hosts = fmt.Sprintf("module-%03d", i/10%100), append(m.Hosts, host(0, i))
	}
	return topology
}

func benchSetTopology(ctx context.Context, b *testing.B, s catalog.Store) {
	b.Helper()
	topology := benchTopology()
	for b.Loop() {
		_, err := s.SetTopology(ctx, benchBusiness, topology)
		must(b, err, "set topology")
	}
}

func benchSetModuleHosts(ctx context.Context, b *testing.B, s catalog.Store) {
	b.Helper()
	hosts, n := []procfleet.Host{host(0, 1), host(0, 2)}, 0
	for b.Loop() {
		n++
		_, err := s.SetModuleHosts(ctx, benchBusiness, "set-1", "module-001", hosts[:1+n%2])
		must(b, err, "set hosts")
	}
}

func benchReadTopology(ctx context.Context, b *testing.B, s catalog.Store) {
	b.Helper()
	for b.Loop() {
		benchSeeTopology(ctx, b, s)
	}
}

func benchSeeTopology(ctx context.Context, b *testing.B, s catalog.Store) {
	b.Helper()
	topology, err := s.Topology(ctx, benchBusiness)
	must(b, err, "topology")
	if len(topology.Sets) != 10 {
		b.Fatalf("%d sets", len(topology.Sets))
	}
}
