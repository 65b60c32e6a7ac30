package templates

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/procfleet/procfleet/catalog"
)

// many are templates as a large business has them: names, paths and commands
// differ, programs, users and modules repeat.
func many(n int) []catalog.Template {
	ts := make([]catalog.Template, n)
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for i := range ts {
		name := fmt.Sprintf("service-%06d-%s", i*7919%n, []string{"web", "db", "cache"}[i%3])
		ts[i] = catalog.Template{
			ID: int64(i + 1), CreatedAt: at.Add(time.Duration(i) * time.Millisecond), ChangedAt: at.Add(time.Duration(i) * time.Millisecond),
			Modules: []string{fmt.Sprintf("module-%03d", i%500), fmt.Sprintf("module-%03d", (i+1)%500)},
			Values: catalog.WithDefaults(map[catalog.Attribute]catalog.Value{
				catalog.AttrName: catalog.Text(name), catalog.AttrFuncName: catalog.Text([]string{"nginx", "mysqld", "redis-server"}[i%3]),
				catalog.AttrPort: catalog.Text(fmt.Sprint(8000 + i%1000)), catalog.AttrUser: catalog.Text("www"),
				catalog.AttrWorkPath: catalog.Text("/data/bkee/" + name), catalog.AttrStart: catalog.Text("./bin/start.sh --name " + name),
				catalog.AttrStop: catalog.Text("./bin/stop.sh"), catalog.AttrTimeout: catalog.Number(int64(i%60 + 1)),
			}),
		}
	}
	return ts
}

func BenchmarkSearch(b *testing.B) {
	v := NewView()
	v.Apply(many(100_000), nil)
	is := func(a catalog.Attribute, c catalog.Comparison, values ...catalog.Value) []catalog.Condition {
		return []catalog.Condition{{Attribute: a, Comparison: c, Values: values}}
	}
	for name, s := range map[string]catalog.Search{
		"everything":                  {},
		"name part":                   {Conditions: is(catalog.AttrName, catalog.Contains, catalog.Text("777-web"))},
		"name part, sorted":           {Conditions: is(catalog.AttrName, catalog.Contains, catalog.Text("web")), Sort: catalog.AttrName, Start: 20_000},
		"module":                      {Conditions: is(catalog.AttrModule, catalog.Is, catalog.Text("module-123"))},
		"exact":                       {Conditions: is(catalog.AttrPort, catalog.Is, catalog.Text("8123"))},
		"everything, sorted by path":  {Sort: catalog.AttrWorkPath, Descending: true, Start: 99_000},
		"everything, sorted by time":  {Sort: catalog.AttrChangedAt},
		"ten parts of long commands":  {Conditions: slicesRepeat(is(catalog.AttrStart, catalog.Contains, catalog.Text("name service-09"))[0], 10)},
		"ids":                         {Conditions: is(catalog.AttrID, catalog.In, catalog.Number(5), catalog.Number(77_777))},
		"number at least, by timeout": {Conditions: is(catalog.AttrTimeout, catalog.AtLeast, catalog.Number(30)), Sort: catalog.AttrTimeout},
	} {
		s.Limit = 200
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			v.Search(s)
			for b.Loop() {
				v.Search(s)
			}
		})
	}
}

func slicesRepeat(c catalog.Condition, n int) []catalog.Condition {
	out := make([]catalog.Condition, n)
	for i := range out {
		out[i] = c
	}
	return out
}

func BenchmarkApply(b *testing.B) {
	all := many(100_000)
	b.Run("load 100,000", func(b *testing.B) {
		for b.Loop() {
			NewView().Apply(all, nil)
		}
	})
	v := NewView()
	v.Apply(all, nil)
	for _, a := range []catalog.Attribute{catalog.AttrName, catalog.AttrChangedAt, catalog.AttrWorkPath} {
		v.Search(catalog.Search{Sort: a, Limit: 1})
	}
	n := 0
	b.Run("rename one", func(b *testing.B) {
		for b.Loop() {
			n++
			t := all[n%len(all)]
			t.Values = catalog.WithDefaults(map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text(fmt.Sprint("new ", n))})
			v.Apply([]catalog.Template{t}, nil)
		}
	})
	b.Run("remove one", func(b *testing.B) {
		for b.Loop() {
			v.Apply(nil, []int64{all[n%len(all)].ID})
			v.Apply(all[n%len(all):n%len(all)+1], nil)
		}
	})
}

func BenchmarkMemory(b *testing.B) {
	all := many(100_000)
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		v := NewView()
		v.Apply(all, nil)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
		runtime.KeepAlive(v)
	}
	runtime.KeepAlive(all)
}
