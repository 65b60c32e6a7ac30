package dispatcher

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/catalogtest"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// drawn is a catalog, a topology and a selection, small enough that names
// meet.
type drawn struct {
	modules  map[string][]string // process → modules
	topology catalog.Topology
	by       procfleet.Selection
}

func drawSelection(t *rapid.T) drawn {
	name := rapid.SampledFrom([]string{"web", "db", "cache", "gone"})
	names := rapid.SliceOfNDistinct(name, 0, 3, rapid.ID[string])
	d := drawn{modules: rapid.MapOfN(rapid.StringMatching("[ab]{1,3}"), names, 1, 6).Draw(t, "processes")}
	host := rapid.Custom(func(t *rapid.T) procfleet.Host {
		h, _ := procfleet.ParseHost(fmt.Sprintf("%d:10.0.0.%d", rapid.IntRange(0, 1).Draw(t, "cloud"), rapid.IntRange(1, 4).Draw(t, "ip")))
		return h
	})
	for _, set := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"s1", "s2"}), 0, 2, rapid.ID[string]).Draw(t, "sets") {
		s := catalog.Set{Name: set}
		for _, m := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"web", "db", "cache"}), 0, 3, rapid.ID[string]).Draw(t, "modules of "+set) {
			s.Modules = append(s.Modules, catalog.Module{Name: m, Hosts: rapid.SliceOfNDistinct(host, 0, 4, rapid.ID[procfleet.Host]).Draw(t, "hosts of "+m)})
		}
		d.topology.Sets = append(d.topology.Sets, s)
	}
	d.by.Name = rapid.StringMatching(`[ab*?]{1,3}`).Draw(t, "pattern")
	d.by.Sets = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"s1", "s2", "s3"}), 0, 2, rapid.ID[string]).Draw(t, "only sets")
	d.by.Modules = rapid.SliceOfNDistinct(name, 0, 2, rapid.ID[string]).Draw(t, "only modules")
	return d
}

// naively returns every selected process on every selected host, by the simplest algorithm.
func (d *drawn) naively() []string {
	all := []string{}
	for process, bound := range d.modules {
		if matches, _ := path.Match(d.by.Name, process); !matches {
			continue
		}
		for _, set := range d.topology.Sets {
			for _, m := range set.Modules {
				if !slices.Contains(bound, m.Name) || len(d.by.Sets) > 0 && !slices.Contains(d.by.Sets, set.Name) ||
					len(d.by.Modules) > 0 && !slices.Contains(d.by.Modules, m.Name) {
					continue
				}
				for _, h := range m.Hosts {
					all = append(all, process+" "+h.String())
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// modelStore is a store whose catalog is a model. It has no methods of tasks.
type modelStore struct {
	*catalogtest.Model
	withoutTasks
}

type withoutTasks struct{ Store }

func TestASelectionIsWhatItSays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := drawSelection(t)
		model := catalogtest.NewModel()
		d.topology.Version = -1
		if _, err := model.SetTopology(t.Context(), biz2, d.topology); err != nil {
			t.Fatal(err)
		}
		for name, modules := range d.modules {
			set := map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text(name), catalog.AttrWorkPath: catalog.Text("/srv")}
			if _, err := model.EditTemplates(t.Context(), biz2, []catalog.Edit{{Set: set, Bind: modules}}); err != nil {
				t.Fatal(err)
			}
		}
		catalogue, err := newSelector(t.Context(), modelStore{Model: model}, biz2.Namespace())
		if err != nil {
			t.Fatal(err)
		}
		items := 0
		found, err := catalogue.choose(t.Context(), procfleet.ActionStop, &d.by, func(n int) error { items += n; return nil })
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for i := range found.parts {
			for _, target := range found.parts[i].Targets {
				got = append(got, found.parts[i].Process.Name+" "+target.Host.String())
			}
		}
		slices.Sort(got)
		want := d.naively()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("-want +got\n%s", diff)
		}
		if items != len(want) {
			t.Fatalf("%d items are counted, of %d", items, len(want))
		}
		err = found.refusal("select")
		if _, refused := errors.AsType[*dialect.Error](err); refused != (len(want) == 0) {
			t.Fatalf("answered %v, want %q", err, want)
		}
	})
}
