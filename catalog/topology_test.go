package catalog_test

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func hosts(n int) []procfleet.Host {
	hs := make([]procfleet.Host, n)
	for i := range hs {
		hs[i] = procfleet.Host{Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
	}
	return hs
}

func module(name string, hs ...procfleet.Host) catalog.Module {
	return catalog.Module{Name: name, Hosts: hs}
}

func topology(sets ...catalog.Set) catalog.Topology { return catalog.Topology{Sets: sets} }

func many[T any](n int, one func(i int) T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = one(i)
	}
	return all
}

func TestATopologyIsRefusedWithTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	hs := hosts(3)
	set := func(i int) catalog.Set { return catalog.Set{Name: fmt.Sprint(i)} }
	modules := func(n int) catalog.Set {
		return catalog.Set{Name: "s", Modules: many(n, func(i int) catalog.Module { return module(fmt.Sprint(i)) })}
	}
	for _, c := range []struct {
		name, field string
		topology    catalog.Topology
	}{
		{"nothing", "", topology()},
		{"whole", "", topology(
			catalog.Set{Name: "s1", Modules: []catalog.Module{module("web", hs...), module("db", hs[0])}},
			catalog.Set{Name: "s2", Modules: []catalog.Module{module("web", hs[0])}})},
		{"a set without a name", "sets[1].name", topology(set(0), catalog.Set{})},
		{"a set twice", "sets[2].name", topology(set(0), set(1), set(0))},
		{"a long name", "sets[0].name", topology(catalog.Set{Name: strings.Repeat("n", catalog.MaxModuleBytes+1)})},
		{"a NUL", "sets[0].modules[0].name", topology(catalog.Set{Name: "s", Modules: []catalog.Module{module("\x00")}})},
		{"bytes that are no text", "sets[0].modules[0].name", topology(catalog.Set{Name: "s", Modules: []catalog.Module{module("\xff")}})},
		{"a module twice", "sets[0].modules[1].name", topology(catalog.Set{Name: "s", Modules: []catalog.Module{module("web"), module("web")}})},
		{"a label that is no filter", "sets[0].modules[0].labels[1]", topology(catalog.Set{Name: "s", Modules: []catalog.Module{{Name: "web", Labels: []string{"role=web", "!"}}}})},
		{"too many labels", "sets[0].modules[0].labels", topology(catalog.Set{Name: "s", Modules: []catalog.Module{{Name: "web", Labels: make([]string, catalog.MaxFilters+1)}}})},
		{"no host", "sets[0].modules[0].hosts[1]", topology(catalog.Set{Name: "s", Modules: []catalog.Module{module("web", hs[0], procfleet.Host{})}})},
		{"a host twice", "sets[0].modules[0].hosts[2]", topology(catalog.Set{Name: "s", Modules: []catalog.Module{module("web", hs[0], hs[1], hs[0])}})},
		{"as many sets as can be", "", topology(many(catalog.MaxSets, set)...)},
		{"too many sets", "sets", topology(many(catalog.MaxSets+1, set)...)},
		{"as many modules as can be", "", topology(modules(catalog.MaxModules))},
		{"too many modules", "sets", topology(modules(catalog.MaxModules + 1))},
		{"too many hosts", "sets", topology(catalog.Set{Name: "s", Modules: []catalog.Module{module("web", hosts(catalog.MaxPlacements)...), module("db", hs[0])}})},
	} {
		field, err := "", c.topology.Validate()
		if wrong, ok := errors.AsType[*procfleet.FieldError](err); ok {
			field = wrong.Field
		}
		if field != c.field {
			t.Errorf("%s: %v, want it about %q", c.name, err, c.field)
		}
	}
}

func TestHostsOfOneModuleAreReplaced(t *testing.T) {
	t.Parallel()
	hs := hosts(4)
	build := func(web ...procfleet.Host) catalog.Topology {
		return topology(
			catalog.Set{Name: "s1", Modules: []catalog.Module{module("web", hs[0])}},
			catalog.Set{Name: "s2", Modules: []catalog.Module{module("db", hs[0]), module("web", web...)}})
	}
	before := build(hs[1])
	given := slices.Clone(hs[2:])
	after, err := before.WithHosts("s2", "web", given)
	if err != nil {
		t.Fatal(err)
	}
	given[0] = hs[0]
	if want := build(hs[2:]...); !reflect.DeepEqual(*after, want) {
		t.Errorf("after: %+v, want %+v", *after, want)
	}
	if want := build(hs[1]); !reflect.DeepEqual(before, want) {
		t.Errorf("what it was made of became %+v", before)
	}
	for _, name := range [][2]string{{"s3", "web"}, {"s1", "db"}} {
		if _, err := before.WithHosts(name[0], name[1], nil); !errors.Is(err, catalog.ErrNoModule) {
			t.Errorf("%v: %v", name, err)
		}
	}
	var wrong *procfleet.FieldError
	if _, err := before.WithHosts("s2", "web", []procfleet.Host{hs[0], hs[0]}); !errors.As(err, &wrong) {
		t.Errorf("a host twice: %v", err)
	}
	if _, err := before.WithHosts("s2", "web", hosts(catalog.MaxPlacements-1)); !errors.As(err, &wrong) {
		t.Errorf("too many hosts: %v", err)
	}
}
