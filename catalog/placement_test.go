package catalog_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func hostsOf(t *testing.T, names ...string) []procfleet.Host {
	t.Helper()
	all := make([]procfleet.Host, len(names))
	for i, name := range names {
		var err error
		if all[i], err = procfleet.ParseHost(name); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestAHostOfSeveralModulesIsPlacedOnce(t *testing.T) {
	t.Parallel()
	topology := catalog.Topology{Sets: []catalog.Set{
		{Name: "s1", Modules: []catalog.Module{{Name: "web", Hosts: hostsOf(t, "0:10.0.0.1", "0:10.0.0.2")}, {Name: "db", Hosts: hostsOf(t, "0:10.0.0.9")}}},
		{Name: "s2", Modules: []catalog.Module{{Name: "web", Hosts: hostsOf(t, "0:10.0.0.3", "0:10.0.0.1")}, {Name: "idle"}}},
	}}
	named := topology.ModulesByName()
	var got []string
	for _, p := range catalog.Placements(append(named["web"], named["idle"]...)) {
		got = append(got, p.Host.String())
		got = append(got, p.Modules...)
	}
	want := []string{"0:10.0.0.1", "s1/web", "s2/web", "0:10.0.0.2", "s1/web", "0:10.0.0.3", "s2/web"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if found := catalog.Placements(named["cache"]); found != nil {
		t.Errorf("%v in a module that there is not", found)
	}
}

func TestABusinessIsReadFromItsNamespace(t *testing.T) {
	t.Parallel()
	for _, b := range []catalog.Business{{Account: "0", ID: 2}, {Account: "acme", ID: 7}, {Account: "a.b.3", ID: 1}, {Account: ".", ID: 1}} {
		if got, err := catalog.ParseBusiness(b.Namespace()); got != b {
			t.Errorf("%s is %+v: %v", b.Namespace(), got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "+2", "02", "2 ", "0.2", ".2", "acme.", "acme.x", "acme.02", "x", "99999999999999999999"} {
		if got, err := catalog.ParseBusiness(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
