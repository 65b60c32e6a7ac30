package pack

import (
	"math"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// readAgain verifies that reading a packed record panics for no data of a damaged or foreign store,
// and that a value that was read stays equal when it is written and read again.
func readAgain[T any](t *testing.T, data string, read func(string) (T, error), write func(*T) []byte) {
	t.Helper()
	first, err := read(data)
	if err != nil {
		return
	}
	second, err := read(string(write(&first)))
	if err != nil {
		t.Fatalf("what was read cannot be written and read again: %v", err)
	}
	same := cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) })
	if diff := cmp.Diff(first, second, same, cmpopts.EquateComparable(procfleet.Host{}, catalog.Value{}), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("it became another:\n%s", diff)
	}
}

func FuzzReadReport(f *testing.F) {
	var r catalog.Report
	fill(reflect.ValueOf(&r).Elem(), 3)
	f.Add(string(Report(&r)))
	f.Fuzz(func(t *testing.T, data string) {
		readAgain(t, data, func(s string) (catalog.Report, error) { return ReadReport(host(1), s) }, Report)
	})
}

func FuzzReadTemplate(f *testing.F) {
	f.Add(string(Template(&catalog.Template{ID: 7, Modules: []string{"web"}, Values: map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text("nginx")}})))
	f.Fuzz(func(t *testing.T, data string) {
		readAgain(t, data, func(s string) (catalog.Template, error) {
			read, err := ReadTemplate(s)
			if err != nil {
				return catalog.Template{}, err
			}
			return *read, nil
		}, Template)
	})
}

func FuzzReadTopology(f *testing.F) {
	f.Add(string(Topology(&catalog.Topology{AutoRegister: true, Sets: []catalog.Set{{Name: "s", Modules: []catalog.Module{{Name: "m", Hosts: []procfleet.Host{host(1)}}}}}})))
	f.Add(string(Topology(&catalog.Topology{Sets: []catalog.Set{{Name: "s", Modules: []catalog.Module{{Name: "m", Labels: []string{"role=web"}}, {Name: "n"}}}}})))
	f.Fuzz(func(t *testing.T, data string) {
		readAgain(t, data, func(s string) (catalog.Topology, error) {
			read, err := ReadTopology(3, s)
			if err != nil {
				return catalog.Topology{}, err
			}
			return *read, nil
		}, Topology)
	})
}

func FuzzReadGroups(f *testing.F) {
	f.Add(`{"name":"shop","labels":{"a":[1,"<"]},"groups":[{"id":"g"}]}`)
	f.Fuzz(func(t *testing.T, data string) {
		g, err := ReadGroups(host(1), "n", []byte(data))
		if err != nil {
			return
		}
		again, err := Groups(&g)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if _, err := ReadGroups(host(1), "n", again); err != nil {
			t.Fatalf("what was read cannot be written and read again: %v", err)
		}
	})
}

func FuzzReadSpec(f *testing.F) {
	spec := procfleet.DefaultSpec()
	text, err := Spec(&spec)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ReadSpec(data)
		if err != nil {
			return
		}
		if again, err := Spec(&s); err == nil {
			if _, err := ReadSpec(again); err != nil {
				t.Fatalf("what was read cannot be written and read again: %v", err)
			}
		}
	})
}
