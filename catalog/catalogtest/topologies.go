package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func topologyChecks() []Check {
	return []Check{
		{Name: "a topology is kept whole", Fn: topologyWhole},
		{Name: "a business has no topology before its first", Fn: topologyAbsent},
		{Name: "a topology is replaced whole, version by version", Fn: topologyReplaced},
		{Name: "the hosts of one module are replaced", Fn: moduleReplaced},
		{Name: "businesses and accounts have their own topologies", Fn: topologiesApart},
		{Name: "a topology that cannot be is refused", Fn: topologyRefused},
		{Name: "one of many replacements of a version wins", Fn: oneReplaces},
		{Name: "simultaneous changes of modules all count", Fn: modulesTogether, Heavy: true},
		{Name: "a topology has 20,000 hosts", Fn: topologyMany, Heavy: true},
	}
}

// wholeTopology returns a topology with a value in every field.
func wholeTopology(t T) catalog.Topology {
	t.Helper()
	return catalog.Topology{Version: 1, AutoRegister: true, Sets: []catalog.Set{
		{Name: "z {\"set\"} 集群\n", Modules: []catalog.Module{
			{Name: "web", Hosts: wideHosts(t)},
			{Name: "idle machine", Default: 1, Hosts: []procfleet.Host{host(0, 2), host(0, 1)}},
			{Name: "模块 \x01", Default: -7},
		}},
		{Name: "a"},
		{Name: "Z", Modules: []catalog.Module{{Name: "web", Hosts: []procfleet.Host{host(0, 1)}, Labels: []string{"role=w*", "env!=test"}}}},
	}}
}

func topologyWhole(ctx context.Context, t T, s Subject) {
	want := wholeTopology(t)
	given := want
	given.Version = 0
	equal(t, "version", setTopology(ctx, t, s, shop, given), want.Version)
	equal(t, "topology", topology(ctx, t, s, shop), want)
}

func topologyAbsent(ctx context.Context, t T, s Subject) {
	equal(t, "topology", topology(ctx, t, s, shop), catalog.Topology{})
	if _, err := s.SetModuleHosts(ctx, shop, "s", "web", nil); !errors.Is(err, catalog.ErrNoModule) {
		t.Errorf("hosts of a module that there is not: %v", err)
	}
	equal(t, "topology", topology(ctx, t, s, shop), catalog.Topology{})
	equal(t, "topology of no business", topology(ctx, t, s, catalog.Business{}), catalog.Topology{})
}

func topologyReplaced(ctx context.Context, t T, s Subject) {
	wrongVersion := func(given, have int64) {
		t.Helper()
		other := place([]string{"other"})
		other.Version = given
		_, err := s.SetTopology(ctx, shop, other)
		wrong, _ := errors.AsType[*catalog.VersionError](err)
		equal(t, "a call with another version fails", wrong, &catalog.VersionError{Have: have, Want: given})
	}
	wrongVersion(1, 0)
	first := place([]string{"s1", "web 2", "db 1"}, []string{"s2", "web 1"})
	equal(t, "version", setTopology(ctx, t, s, shop, first), int64(1))
	wrongVersion(0, 1)
	wrongVersion(2, 1)
	second := place([]string{"s2", "cache 1"})
	second.Version = 1
	equal(t, "version", setTopology(ctx, t, s, shop, second), int64(2))
	second.Version, second.AutoRegister = 2, true
	equal(t, "version", setTopology(ctx, t, s, shop, second), int64(3))
	second.Version = 3
	equal(t, "topology", topology(ctx, t, s, shop), second)
	equal(t, "version", setTopology(ctx, t, s, shop, catalog.Topology{Version: -1}), int64(4))
	equal(t, "an empty topology", topology(ctx, t, s, shop), catalog.Topology{Version: 4})
	wrongVersion(0, 4)
}

func moduleReplaced(ctx context.Context, t T, s Subject) {
	want := place([]string{"s1", "web 2", "db 1"}, []string{"s2", "web 1"})
	want.AutoRegister = true
	setTopology(ctx, t, s, shop, want)
	replace := func(set, module string, hs []procfleet.Host, version int64) {
		t.Helper()
		got, err := s.SetModuleHosts(ctx, shop, set, module, hs)
		must(t, err, "set hosts of a module")
		equal(t, "version", got, version)
		want.Version = version
		equal(t, "topology", topology(ctx, t, s, shop), want)
	}
	want.Sets[1].Modules[0].Hosts = []procfleet.Host{host(7, 3), host(0, 1)}
	replace("s2", "web", want.Sets[1].Modules[0].Hosts, 2)
	want.Sets[0].Modules[0].Hosts = nil
	replace("s1", "web", nil, 3)
	for _, no := range [][2]string{{"s2", "db"}, {"s3", "web"}, {"", "web"}, {"s1", ""}, {"S1", "web"}} {
		if _, err := s.SetModuleHosts(ctx, shop, no[0], no[1], hosts(1)); !errors.Is(err, catalog.ErrNoModule) {
			t.Errorf("hosts of %q: %v", no, err)
		}
	}
	for what, hs := range map[string][]procfleet.Host{"a host twice": {host(0, 1), host(0, 1)}, "no host": {{}}} {
		if _, err := s.SetModuleHosts(ctx, shop, "s1", "web", hs); !isFieldError(err) {
			t.Errorf("a module of %s: %v", what, err)
		}
	}
	equal(t, "topology", topology(ctx, t, s, shop), want)
}

func topologiesApart(ctx context.Context, t T, s Subject) {
	businesses := []catalog.Business{shop, {Account: "0", ID: 22}, {Account: "02", ID: 2}, {Account: "1", ID: 2}, {Account: "0}", ID: 2}}
	for i, b := range businesses {
		for range i + 1 {
			setTopology(ctx, t, s, b, place([]string{fmt.Sprint("s", i), "web 1"}))
		}
	}
	for i, b := range businesses {
		want := place([]string{fmt.Sprint("s", i), "web 1"})
		want.Version = int64(i + 1)
		equal(t, fmt.Sprintf("topology of %+v", b), topology(ctx, t, s, b), want)
	}
}

func topologyRefused(ctx context.Context, t T, s Subject) {
	setTopology(ctx, t, s, shop, place([]string{"s", "web 1"}))
	want := topology(ctx, t, s, shop)
	broken := place([]string{"s", "web 1"})
	broken.Sets[0].Modules[0].Hosts = slices.Repeat(hosts(1), 2)
	for what, bad := range map[string]catalog.Topology{
		"of a set without a name":    place([]string{""}),
		"of a set twice":             place([]string{"s"}, []string{"t"}, []string{"s"}),
		"of a module twice":          place([]string{"s", "a", "b", "a"}),
		"of a module without a name": place([]string{"s", ""}),
		"of a host twice":            broken,
		"of a long name":             place([]string{strings.Repeat("s", catalog.MaxModuleBytes+1)}),
		"of a name that is no text":  place([]string{"\xff"}),
	} {
		if _, err := s.SetTopology(ctx, shop, bad); !isFieldError(err) {
			t.Errorf("a topology %s: %v", what, err)
		}
	}
	if _, err := s.SetTopology(ctx, catalog.Business{Account: "0"}, place([]string{"s"})); !isFieldError(err) {
		t.Errorf("a topology of no business: %v", err)
	}
	equal(t, "topology", topology(ctx, t, s, shop), want)
}

func oneReplaces(ctx context.Context, t T, s Subject) {
	setTopology(ctx, t, s, shop, place([]string{"first"}))
	var mu sync.Mutex
	var won []string
	together(20, func(i int) {
		mine := place([]string{fmt.Sprint("s", i), "web 1"})
		mine.Version = 1
		version, err := s.SetTopology(ctx, shop, mine)
		mu.Lock()
		defer mu.Unlock()
		if wrong, _ := errors.AsType[*catalog.VersionError](err); wrong != nil && wrong.Have == 2 {
			return
		}
		if err != nil || version != 2 {
			t.Errorf("version %d: %v", version, err)
		}
		won = append(won, mine.Sets[0].Name)
	})
	got := topology(ctx, t, s, shop)
	if len(won) != 1 || got.Version != 2 || got.Sets[0].Name != won[0] {
		t.Errorf("of %q one should have won; there is %+v", won, got)
	}
}

func modulesTogether(ctx context.Context, t T, s Subject) {
	const modules = 20
	set := []string{"s"}
	for i := range modules {
		set = append(set, fmt.Sprintf("m%02d", i))
	}
	setTopology(ctx, t, s, shop, place(set))
	versions := make([]int64, modules)
	together(modules, func(i int) {
		var err error
		if versions[i], err = s.SetModuleHosts(ctx, shop, "s", set[i+1], []procfleet.Host{host(0, i)}); err != nil {
			t.Errorf("set hosts of a module: %v", err)
		}
	})
	got := topology(ctx, t, s, shop)
	equal(t, "version", got.Version, int64(modules+1))
	for i, m := range got.Sets[0].Modules {
		equal(t, "hosts of "+m.Name, m.Hosts, []procfleet.Host{host(0, i)})
	}
	slices.Sort(versions)
	equal(t, "number of versions", len(slices.Compact(versions)), modules)
}

func topologyMany(ctx context.Context, t T, s Subject) {
	want := place([]string{"s"})
	for i, hs := 0, hosts(20_000); len(hs) > 0; i, hs = i+1, hs[100:] {
		want.Sets[0].Modules = append(want.Sets[0].Modules, catalog.Module{Name: fmt.Sprint("m", i), Hosts: hs[:100]})
	}
	want.Version = setTopology(ctx, t, s, shop, want)
	sameTopology(ctx, t, s, want)
	want.Sets[0].Modules[199].Hosts = hosts(20_000)
	_, err := s.SetModuleHosts(ctx, shop, "s", "m199", want.Sets[0].Modules[199].Hosts)
	must(t, err, "set hosts of a module")
	want.Version++
	sameTopology(ctx, t, s, want)
}

// sameTopology compares a topology that is too large to print.
func sameTopology(ctx context.Context, t T, s catalog.Store, want catalog.Topology) {
	t.Helper()
	if got := topology(ctx, t, s, shop); !reflect.DeepEqual(got, want) {
		t.Errorf("version %d of the topology, of %d sets, is not what it should be", got.Version, len(got.Sets))
	}
}
